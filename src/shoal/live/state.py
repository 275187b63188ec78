"""What a page asks for: one value that an address holds, and that a command line can repeat.

A page's state is untrusted: it may come from a link. `read_state` refuses anything that is not a
few short words; the words themselves are checked by the setting's types, as on the command line.
"""

import shlex
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from shoal.errors import InputError

LONGEST = 200
"""Characters of a name or a value."""
MOST = 100
"""Settings, probes or changes of the step in one state."""


class State(NamedTuple):
    """A target, its settings, and what is looked at."""

    target: str
    values: tuple[tuple[str, str], ...] = ()  # Settings that differ from the defaults, as words.
    seed: int = 0
    theorem: str = ""  # Key; empty: the first that covers the setting.
    probes: tuple[str, ...] = ()  # Recorded beside what the theorem needs.
    changes: tuple[tuple[int, float], ...] = ()  # At which step the step size became which.
    data: str = ""  # Digest of a file that was dropped.

    def same_run(self, other: "State") -> bool:
        """Whether both describe the same run, but for its method and step size."""
        left_out = "step_size", "method"
        mine, theirs = (
            (s.target, {k: v for k, v in s.values if k not in left_out}, s.seed, s.data)
            for s in (self, other)
        )
        return mine == theirs


def _word(value: Any, what: str, longest: int = LONGEST) -> str:
    if not isinstance(value, str) or len(value) > longest or not value.isprintable():
        raise InputError(f"{what}: expected a word of at most {longest} characters.")
    return value


def whole(value: Any, what: str, most: int) -> int:
    """A whole number from 0, or an error."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise InputError(f"{what}: expected a whole number from 0 to {most}.")
    return value


def _change(pair: Any) -> tuple[int, float]:
    if not isinstance(pair, list) or len(pair) != 2:
        raise InputError("changes: expected pairs of a step and a step size.")
    at, step = pair
    real = isinstance(step, int | float) and not isinstance(step, bool) and 0 < step < 1e300
    if not real:
        raise InputError("changes: expected a step size above 0.")
    return whole(at, "changes", 10**9), float(step)


def read_state(given: Any) -> State:
    """The state in what a page sent, or an error that says what is wrong with it.

    >>> read_state({"target": "wu2023", "values": {"width": "64"}}).values
    (('width', '64'),)
    """
    if not isinstance(given, Mapping) or set(given) - set(State._fields):
        raise InputError(f"a state has the parts {', '.join(State._fields)}.")
    values, probes = given.get("values", {}), given.get("probes", [])
    changes = given.get("changes", [])
    if not isinstance(values, Mapping) or len(values) > MOST:
        raise InputError("values: expected settings by name.")
    for listed in (probes, changes):
        if not isinstance(listed, list) or len(listed) > MOST:
            raise InputError(f"probes, changes: expected lists of at most {MOST}.")
    pairs = [(_word(k, "values"), _word(v, "values").strip()) for k, v in values.items()]
    moved = sorted(map(_change, changes))
    return State(
        _word(given.get("target"), "target", 1000),
        tuple(sorted(pairs)),
        whole(given.get("seed", 0), "seed", 2**31 - 1),
        _word(given.get("theorem", ""), "theorem"),
        tuple(dict.fromkeys(_word(name, "probes") for name in probes)),
        tuple(moved),
        _word(given.get("data", ""), "data", 64),
    )


# ------------------------------------------------------------------- the same by other means


def command(state: State, step_size: float | None, probes: Iterable[str], data: str) -> str:
    """The line that repeats a run on the command line; what differs from defaults is named."""
    words = ["shoal", "certify", f"{state.target}.{state.theorem}"]
    if not state.theorem:
        words[1:] = ["train", state.target]
    values = dict(state.values) | ({} if step_size is None else {"step_size": repr(step_size)})
    for name, value in values.items():
        words += ["--set", f"{name}={value}"]
    words += ["--seeds", str(state.seed)] if state.seed else []
    words += ["--data", data] if data else []
    return shlex.join([*words, "--probes", ",".join(probes) or "none"])


def script(
    state: State, step_size: float | None, probes: Iterable[str], data: str, steps: int, every: int
) -> str:
    """A Python script that repeats a run, with the changes of its step size."""
    own = ".py:" in state.target
    made = _own_setup(state) if own else _paper_setup(state, data)
    lines = ["import shoal as sh", "", *made]
    size = "" if step_size is None else f", step_size={step_size!r}"
    how = f"{size}, probes={list(probes)!r}, every={every}"
    if not state.changes:
        lines += [f"run = sh.train(setup, steps={steps}{how})", "print(run)"]
        if state.theorem:
            lines.append(f'print(sh.certify(run, "{state.theorem}"))')
        return "\n".join(lines) + "\n"
    lines += ["# the step size was changed on the way: each part begins where the last one ended"]
    ends = [*(at for at, _ in state.changes), steps]
    sizes = [step_size, *(size for _, size in state.changes)]
    begun = 0
    for end, step in zip(ends, sizes, strict=True):
        if end > begun:
            how = f"step_size={step!r}, probes={list(probes)!r}, every={every}"
            lines += [
                f"run = sh.train(setup, steps={end - begun}, {how})",
                f'print("step {end}:", run.risk[0, -1])',
                "setup = setup.replace(params0=run.params)",
            ]
        begun = end
    return "\n".join(lines) + "\n"


def _paper_setup(state: State, data: str) -> list[str]:
    values = {k: v for k, v in state.values if k not in ("step_size", "num_steps", "every")}
    words = [f"    {name}={value!r}," for name, value in values.items()]
    words += [f"    data={data!r},"] if data else []
    return [f"setup = sh.setup(\n    {state.target!r},", *words, f"    seeds=[{state.seed}],", ")"]


def _own_setup(state: State) -> list[str]:
    values = {k: v for k, v in state.values if k not in ("step_size", "num_steps", "every")}
    return [
        "from shoal.papers import target_of",
        "",
        f"source = target_of({state.target!r})",
        f"setup = source.setup({values!r}, seeds=({state.seed},), precision='float64')",
    ]
