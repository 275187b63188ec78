"""``diagnose``: why a run is slow or stuck."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.markup import escape

import shoal as sh
from shoal import console
from shoal.cli.commands import Start, _setup, answer, own_setup_of, write_page
from shoal.disk import logs
from shoal.disk import runs as disk
from shoal.errors import InputError
from shoal.lab.diagnosis import Diagnosis, tried_words
from shoal.lab.looking import VERDICTS, curve_verdict
from shoal.lab.run import Run
from shoal.pages import sections
from shoal.papers import target_of


def diagnose(
    target: str, *, start: Start, run: Path | None, seed: int | None, trials: bool,
    step_size: float | None, out: Path | None, json: bool,
) -> None:  # fmt: skip
    """``shoal diagnose``."""
    if out is not None:
        disk.require_file(out)
    folder = Path(target)
    if run is None and folder.is_dir():  # a run folder or a log by itself
        if logs.is_log(folder):
            return _of_curve(folder, out, json=json)
        target, run = "", folder
    if not target and run is None:
        raise InputError("what should be diagnosed? Name a paper, my.py:name, a run or a log.")
    setup = _setup(target_of(target), start) if run is None else None
    made = _loaded(target, run, start) if run is not None else None
    with console.working("diagnose") as tell:
        if setup is not None:
            tell("training")
            made = sh.train(setup, step_size=step_size, probes=[])
        found = sh.diagnose(made, seed=seed, trials=trials, progress=tell)
    if out is not None:
        write_page(out, f"Diagnosis of {found.model}", "", sections.diagnosis_sections(found), [])
    note = "" if out is None else f"wrote {out}"
    return answer(found.to_json(), _parts(found), note, json=json)


def _loaded(target: str, folder: Path, start: Start) -> Run:
    if start != Start():
        raise InputError("--run diagnoses a finished run: leave out --set, --data, --seeds, ...")
    if logs.is_log(folder):
        setup = target_of(target).setup({}, precision="float64")
        return sh.load(folder, setup)
    return disk.load_run(folder, own_setup_of(target, folder))


def _of_curve(folder: Path, out: Path | None, *, json: bool) -> None:
    """The verdict on a log alone, from its curve."""
    about, table = logs.read_log(folder)
    word, reason = curve_verdict(table["step"].to_numpy(), table["risk"].to_numpy())
    if out is not None:
        parts = sections.log_sections(about, table)
        write_page(out, f"A log of {about['model']}", f"{word}: {reason}.", parts, [])
    value = {"model": about["model"], "verdict": word, "reason": reason, "causes": None}
    more = f"For causes, name the model: shoal diagnose my.py:name --run {folder}"
    answer(value, [_headline(str(about["model"]), word, reason)], more, json=json)


def _headline(model: str, word: str, reason: str) -> str:
    colour = {"at the floor": "green", "converging": "green", "slow": "yellow"}.get(word, "red")
    return (
        f"[bold]{escape(model)}[/] is [{colour}]{word}[/]: {escape(reason)}.\n"
        f"[dim]{VERDICTS[word]}[/]"
    )


def _parts(found: Diagnosis) -> Iterator[Any]:
    yield _headline(f"{found.model}, seed {found.seed}", found.verdict, found.reason)
    for number, cause in enumerate(found.causes, start=1):
        yield f"\n[bold]{number}. {escape(sections.sentence(cause.sentence))}[/]"
        yield f"   [bold cyan]{escape(sections.sentence(cause.advice))}[/]"
        if cause.trial is not None:
            yield f"   {escape(tried_words(cause))}"
        yield (
            f"   [dim]{console.number(cause.value)}, limit {console.number(cause.limit)}: "
            f"{escape(cause.why)}.[/]"
        )
    if not found.causes:
        yield "\nNo cause was found." if found.verdict not in ("at the floor", "converging") else ""
    for cause in found.tried:
        if cause.trial is not None:
            yield f"[dim]Also tried, without use: {escape(cause.trial.change)}.[/]"
