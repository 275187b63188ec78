"""Commands with bad words, bad files or bad places, drawn from one seed."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from attack_inputs.damage import WORDS, damaged_copy
from attack_inputs.specimens import SMALL, settings


class Case(NamedTuple):
    """A command; ``refused`` says that it must not succeed."""

    words: list[str]
    refused: bool = False


Kind = Callable[[random.Random, Path, dict[str, Path]], Case]
QUICK = ["--steps", "2"]
NAMES = ("nonsense", "", "wu2023.", ".theorem_a", "wu2023.theorem_z", "wu2023.theorem_a.b",
         "/", "..",
         "./none.py", "none.py:model", "wu2023:model", "\x1b[2J", "[bold]", "é", "x" * 5000, "a\0b",
         "a\nb", "\udcff", "-1", "train", "WU2023", "wu2023 ", "os:system", ".py", ":x",
         "/dev/zero",
         "/dev/null", "/dev/zero.py", "/proc/self/mem", "toy.py.", "*")  # fmt: skip
OUTS = ("/dev/null/x", "/proc/nothing", "/dev/full", "x" * 5000, "a" * 256 + "/b", "\udcff/x\0",
        "", ".", "/", "..", "/sys/x", "/etc/passwd/x", "loop", "file/x", "/dev/full/x")  # fmt: skip


def word(rng: random.Random) -> str:
    return rng.choice(WORDS)


def _target(rng: random.Random) -> str:
    return rng.choice(tuple(SMALL))


def _bad_settings(rng: random.Random, place: Path, has: dict[str, Path]) -> Case:
    from shoal.papers import PAPERS

    paper = _target(rng)
    names = [*PAPERS[paper].setting().asdict()]
    name = rng.choice(names) if rng.random() < 0.9 else word(rng)
    command = rng.choice((["train"], ["train"], ["certify"], ["prove"], ["data"], ["diagnose"]))
    theorem = rng.choice(PAPERS[paper].all_theorems()).key
    target = f"{paper}.{theorem}" if command == ["certify"] else paper
    given = ["--set", f"{name}={word(rng)}"] if rng.random() < 0.93 else ["--set", word(rng)]
    quick = [] if name == "num_steps" or command == ["data"] else QUICK
    trials = ["--no-trials"] if command == ["diagnose"] else []
    small = settings(paper)
    kept = [w for pair in zip(small[::2], small[1::2], strict=True)
            if not pair[1].startswith(f"{name}=") for w in pair]  # fmt: skip
    return Case([*command, target, *kept, *given, *quick, *trials])


def _bad_options(rng: random.Random, place: Path, has: dict[str, Path]) -> Case:
    paper = _target(rng)
    small = settings(paper)
    option = rng.choice(("--seeds", "--steps", "--precision", "--probes", "--data", "--params",
                         "--out", "--run", "--json=", "--nonsense", "--step-size", "--most-steps",
                         "--through", "--seed"))  # fmt: skip
    command = rng.choice(("train", "certify", "prove", "diagnose", "landscape"))
    target = {"certify": f"{paper}.kernel_regime", "landscape": str(has[f"run {paper}"])}
    more = [] if command == "landscape" else [*small, *QUICK]
    more += ["--no-trials"] if command == "diagnose" else []
    extra = ["--points", "3"] if command == "landscape" else []
    return Case([command, target.get(command, paper), *more, *extra, option, word(rng)])


def _bad_names(rng: random.Random, place: Path, has: dict[str, Path]) -> Case:
    command = rng.choice(("train", "certify", "prove", "diagnose", "data", "papers", "reproduce",
                          "claims", "plan", "landscape", "report", "ls", "sweep", "check", "lab",
                          "bench", "new"))  # fmt: skip
    name = rng.choice(NAMES) if rng.random() < 0.8 else word(rng)
    more = {"lab": ["--no-open"], "new": ["paper"]}.get(command, [])
    words = [command, *more, name]
    # an empty name is no name for papers and claims; a title is any Python name
    loose = command in ("new", "claims", "papers", "prove", "diagnose", "train", "data", "certify")
    return Case(words, refused=not loose and command not in ("reproduce", "plan", "lab"))


def _bad_outs(rng: random.Random, place: Path, has: dict[str, Path]) -> Case:
    (place / "file").write_text("x")
    (place / "loop").symlink_to("loop")
    out = rng.choice(OUTS)
    paper = _target(rng)
    run, sweep = str(has[f"run {paper}"]), str(has["sweep"])
    words = rng.choice((
        ["train", paper, *settings(paper), *QUICK, "--out", out],
        ["certify", f"{paper}.kernel_regime", *settings(paper), *QUICK, "--out", out],
        ["landscape", run, "--points", "3", "--out", out],
        ["report", run, "--out", out],
        ["export", sweep, out], ["export", sweep, f"{out}/a.csv"], ["export", sweep,
        f"{out}.parquet"],
        ["sweep", str(has["sweep file"]), "--out", out],
        ["new", "paper", "mine", "--out", out],
        ["prove", f"{has['model']}:model", *QUICK, "--out", out],
        ["prove", f"{has['model']}:line", "--steps", "20", "--out", f"{out}.json"],
        ["diagnose", run, "--no-trials", "--out", out],
        ["claims", str(has["toy"]), "--ledger", str(has["ledger"]), "--out", out],
        ["claims", str(has["toy"]), "--ledger", str(has["ledger"]), "--markdown", out],
        ["claims", "freeze", str(has["toy"]), "--ledger", out],
    ))  # fmt: skip
    return Case(words)


def _bad_runs(rng: random.Random, place: Path, has: dict[str, Path]) -> Case:
    kind = rng.choice([k for k in has if k.startswith("run ")])
    folder = str(damaged_copy(rng, has[kind], place))
    own = kind == "run own"
    paper = f"{has['model']}:model" if own else kind.split()[1]
    named = ["--paper", paper] if own else []
    words = rng.choice((
        ["certify", f"{paper}.kernel_regime", "--run", folder],
        ["prove", *([paper] if own else []), "--run", folder],
        ["diagnose", *([paper, "--run"] if own else []), folder, "--no-trials"],
        ["landscape", folder, "--points", "3", *named],
        ["report", folder, *named],
    ))  # fmt: skip
    return Case(words)


def _bad_sweeps(rng: random.Random, place: Path, has: dict[str, Path]) -> Case:
    folder = str(damaged_copy(rng, has["sweep"], place))
    words = rng.choice((
        ["ls", folder], ["ls", folder, "--json"], ["show", folder, "0"], ["show", folder,
        word(rng)],
        ["show", folder, "1", "--json"], ["export", folder, str(place / "t.csv")],
        ["export", folder, str(place / "t.parquet")],
        ["sweep", str(has["sweep file"]), "--out", folder, "--dry-run"],
    ))  # fmt: skip
    return Case(words)


def _bad_questions(rng: random.Random, place: Path, has: dict[str, Path]) -> Case:
    sql = rng.choice((
        "select * from runs", "select {} from runs", "select width {} from runs", "with {} as x",
        "select * from runs where width = {}", "select * from runs order by {}", "{}",
        "select * from read_csv('{}')", "select cast(width as {}) from runs",
        "select sum({}) from runs group by {}", "select * from runs limit {}", "drop table {}",
        "select * from runs; {}", "select width from runs union select {}", "explain select {}",
        "select * from {}", "select exp({}) from runs",
    ))  # fmt: skip
    return Case(["query", str(has["sweep"]), sql.replace("{}", word(rng))])


def _bad_sweep_files(rng: random.Random, place: Path, has: dict[str, Path]) -> Case:
    path = str(damaged_copy(rng, has["sweep file"], place))
    return Case(["sweep", path, "--dry-run", "--out", str(place / "out")])


def _bad_arrays(rng: random.Random, place: Path, has: dict[str, Path]) -> Case:
    kind = rng.choice(("data", "data", "weights", "safetensors"))
    path = str(damaged_copy(rng, has[kind], place))
    option = "--data" if kind == "data" else "--params"
    if kind == "data" and rng.random() < 0.2:
        return Case(["data", "wu2023", "--data", path])
    paper = _target(rng) if kind == "data" else "wu2023"
    sizes = [w for w in settings(paper) if kind != "data"]
    command = rng.choice((["train", paper], ["certify", f"{paper}.kernel_regime"]))
    return Case([*command, *sizes, option, path, *QUICK])


def _bad_python(rng: random.Random, place: Path, has: dict[str, Path]) -> Case:
    kind = rng.choice(("toy", "model"))
    path = damaged_copy(rng, has[kind], place)
    if kind == "model":
        words = rng.choice((["train"], ["prove"], ["diagnose", "--no-trials"]))
        name = rng.choice(("model", "model", "model", "f", "np", "nothing", ""))
        return Case([*words, f"{path}:{name}", *QUICK])
    words = rng.choice((
        ["train", str(path), *QUICK], ["certify", f"{path}.theorem_1", *QUICK], ["papers",
        str(path)],
        ["claims", str(path)], ["papers", str(path), "--json"], ["plan", str(path), "--seeds", "0"],
    ))  # fmt: skip
    return Case(words)


def _bad_ledgers(rng: random.Random, place: Path, has: dict[str, Path]) -> Case:
    folder = str(damaged_copy(rng, has["ledger"], place))
    words = rng.choice((
        [], ["--json"], ["--replay"], ["--until-decided", "--seeds", "0"], ["--out",
        str(place / "o")],
        ["--until-decided", "--budget", word(rng), "--seeds", "1"],
    ))  # fmt: skip
    return Case(["claims", str(has["toy"]), "--ledger", folder, *words])


def _bad_proofs(rng: random.Random, place: Path, has: dict[str, Path]) -> Case:
    path = str(damaged_copy(rng, has["proof"], place))
    return Case(["check", path, *rng.choice(([], ["--json"]))])


def _bad_reports(rng: random.Random, place: Path, has: dict[str, Path]) -> Case:
    path = damaged_copy(rng, has[rng.choice(("certificate", "figures", "log"))], place)
    if path.name == "log":
        more = rng.choice(([], ["--json"], ["--out", str(place / "page.html")]))
        return Case(["diagnose", str(path), *more])
    return Case(["report", str(path), "--out", str(place / "page.html")])


def _bad_kernels(rng: random.Random, place: Path, has: dict[str, Path]) -> Case:
    """Tangent kernels in parts; as many parts as are drawn."""
    paper, out = _target(rng), str(place / "k")
    option = rng.choice(("--part", "--part", "--seed", "--scheduler", "--out", "--set", "--params"))
    given = f"{rng.choice(('width', 'num_samples', 'dim'))}={word(rng)}"
    value = {"--set": given, "--out": rng.choice(OUTS)}.get(option, word(rng))
    if option == "--params":
        value = str(damaged_copy(rng, has["weights"], place))
        paper = "wu2023"
    target = rng.choice((paper, paper, f"{has['model']}:model", rng.choice(NAMES)))
    sizes = settings(paper) if target == paper and option != "--set" else []
    if option == "--set":
        sizes = [w for w in settings(paper) if "=" in w and not w.startswith(given.split("=")[0])]
        sizes = [word for value in sizes for word in ("--set", value)]
    return Case(["kernel", target, *sizes, "--out", out, option, value]
                if option != "--out" else ["kernel", target, *sizes, "--out", value])  # fmt: skip


def _bad_lines(rng: random.Random, place: Path, has: dict[str, Path]) -> Case:
    """Any command with too many, too few or strange words."""
    command = rng.choice(("tour", "train", "certify", "diagnose", "prove", "check", "data",
    "claims",
                          "reproduce", "landscape", "sweep", "ls", "show", "query",
                          "export", "plan",
                          "bench", "report", "new", "lab", "papers", word(rng)))  # fmt: skip
    option = rng.choice(
        (
            "--nonsense",
            "--json=maybe",
            "--out",
            "--points",
            "--span",
            "--rounds",
            "--samples",
            "--seeds",
            "--target",
            "--budget",
            "--port",
            "--theorem",
        )
    )
    words = [command, *(word(rng) for _ in range(rng.randrange(3))), option]
    return Case([*words, *(word(rng) for _ in range(rng.randrange(2)))])


def _honest(rng: random.Random, place: Path, has: dict[str, Path]) -> Case:
    """Commands that must succeed: without them a program that refuses all would pass."""
    paper = _target(rng)
    out = str(place / "out")
    return Case(rng.choice((
        ["train", paper, *settings(paper), *QUICK, "--json"], ["papers", paper, "--json"],
        ["report", str(has[f"run {paper}"]), "--out", f"{out}.html"], ["ls", str(has["sweep"])],
        ["check", str(has["proof"])], ["diagnose", str(has["log"])], ["new", "paper", "mine"],
        ["export", str(has["sweep"]), f"{out}.csv"], ["claims", str(has["toy"]), "--ledger",
         str(has["ledger"]), "--json"],
    )))  # fmt: skip


KINDS: dict[str, Kind] = {
    "settings": _bad_settings, "options": _bad_options, "names": _bad_names, "outs": _bad_outs,
    "runs": _bad_runs, "sweeps": _bad_sweeps, "questions": _bad_questions,
    "sweep files": _bad_sweep_files, "arrays": _bad_arrays, "python": _bad_python,
    "ledgers": _bad_ledgers, "proofs": _bad_proofs, "pages": _bad_reports, "lines": _bad_lines,
    "kernels": _bad_kernels, "honest": _honest,
}  # fmt: skip


def draw(
    seed: int, number: int, place: Path, has: dict[str, Path], kinds: tuple[str, ...] = ()
) -> tuple[str, Case]:
    """The case of a number: the same for the same seed, whatever was drawn before."""
    rng = random.Random(f"{seed}.{number}")
    kind = rng.choice(kinds or tuple(KINDS))
    os.chdir(place)
    return kind, KINDS[kind](rng, place, has)
