"""How long until a command has answered?"""

import subprocess
import sys
import tempfile
from typing import Any

import harness

SMALL = ("--set", "width=64", "--set", "num_samples=20", "--steps", "100", "--seeds", "0,1")


def _command(*words: str, warm: bool = True) -> harness.Work:
    import os

    folder = tempfile.mkdtemp()
    environment = os.environ | {"SHOAL_CACHE_DIR": folder}
    environment.pop("JAX_ENABLE_COMPILATION_CACHE", None)  # here the cache is the point

    def work() -> dict[str, Any]:
        if not warm:
            environment["SHOAL_CACHE_DIR"] = tempfile.mkdtemp()
        subprocess.run(
            [sys.executable, "-m", "shoal", *words],
            check=True,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return {}

    if warm:
        work()
    return work


SIDES = {
    "shoal --help": lambda precision: _command("--help"),  # noqa: ARG005
    "shoal papers": lambda precision: _command("papers"),  # noqa: ARG005
    "shoal train, first call": lambda precision: _command(  # noqa: ARG005
        "train", "wu2023", *SMALL, warm=False
    ),
    "shoal train, second call": lambda precision: _command("train", "wu2023", *SMALL),  # noqa: ARG005
}

QUESTION = harness.Question(
    "Cold start",
    "Whole commands, from the shell and back; the second call finds its programs compiled.",
    "command",
    (harness.Case("a small run", {}, dict.fromkeys(SIDES, 1), rounds=3),),
    SIDES,
)

if __name__ == "__main__":
    harness.main(QUESTION)
