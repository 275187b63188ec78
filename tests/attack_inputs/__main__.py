"""``python -m attack_inputs --count 2000 --processes 100 --seed 0``: the whole attack."""

import argparse
import collections
import faulthandler
import json
import os
import resource
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["XLA_FLAGS"] = (  # most of the time is compilation
    f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false"
)


def main() -> int:
    """Attack, print every fault and the figures; 1 if there is a fault."""
    parser = argparse.ArgumentParser(prog="attack_inputs")
    for name, usual in (("count", 2000), ("processes", 100), ("seed", 0), ("first", 0)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--out", type=Path, help="write the faults as JSON lines")
    given = parser.parse_args()
    most = 6 * 2**30  # an input that fills memory must not take the machine with it
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        os.environ["SHOAL_CACHE_DIR"] = f"{folder}/cache"
        return _attack(Path(folder), given)


def _attack(folder: Path, given: argparse.Namespace) -> int:
    import jax

    from attack_inputs.judge import LONGEST, tried
    from attack_inputs.specimens import make
    from shoal.runtime import clear_programs

    has = make(folder / "specimens")
    counts, bad, slowest = collections.Counter(), collections.Counter(), 0.0
    codes: collections.Counter = collections.Counter()
    log = given.out.open("w") if given.out else None
    numbers = [(n, False) for n in range(given.first, given.first + given.count)]
    numbers += [(n + given.count, True) for n in range(given.first, given.first + given.processes)]
    for number, process in numbers:
        faulthandler.dump_traceback_later(15 * LONGEST, exit=True)
        clear_programs()
        if number % 100 == 99:
            jax.clear_caches()
            sys.stderr.write(f"{number + 1} inputs, {sum(bad.values())} faults\n")
        kind, case, had, wrong = tried(given.seed, number, has, process=process, limit=6 * LONGEST)
        counts[kind, process] += 1
        codes[had.code, process] += 1
        slowest = max(slowest, had.seconds)
        for text in wrong:
            bad[text.partition(":")[0]] += 1
            sys.stdout.write(f"{number} {kind} {[w[:80] for w in case.words]}\n  {text}\n")
            sys.stdout.flush()
            if log:
                log.write(json.dumps({"number": number, "kind": kind, "fault": text}) + "\n")
    faulthandler.cancel_dump_traceback_later()
    for process in (False, True):
        kinds = {kind: n for (kind, p), n in sorted(counts.items()) if p == process}
        exits = {str(code): n for (code, p), n in codes.items() if p == process}
        where = "processes" if process else "in process"
        sys.stdout.write(f"{where}: {sum(kinds.values())} inputs {kinds}, exits {exits}\n")
    sys.stdout.write(f"slowest {slowest:.1f} s; faults: {dict(bad) or 'none'}\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
