"""Every kernel in C at odd shapes under sanitizers, without XLA; or the time of a call on one core.

    python tests/native_shapes.py [--shapes 100] [--seed 1] [--only address]

Exit code 0 if address, undefined and thread sanitizers report nothing, no result is infinite or not
a number, and a repeated call gives the same bits, whichever threads took part.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
KERNELS = ("attention_blocks", "heads", "hidden_units")
SANITIZERS = {"address": "address,undefined", "thread": "thread"}


def include_folders() -> list[str]:
    """Where the kernels and XLA's header are; JAX itself is not imported."""
    from importlib.util import find_spec

    jaxlib = find_spec("jaxlib")
    assert jaxlib is not None
    assert jaxlib.origin is not None
    shoal = HERE.parent / "src" / "shoal"
    return [f"-I{folder}" for folder in (shoal, Path(jaxlib.origin).parent / "include")]


def compiled(kernel: int, real: str, words: list[str], folder: Path) -> Path:
    """The program that runs one kernel."""
    path = folder / f"{KERNELS[kernel]}-{real}"
    common = ["-std=gnu11", "-march=native", "-ffp-contract=fast", "-Wall", "-Wextra", "-Werror"]
    about = [f"-DREAL={real}", f"-DKERNEL={kernel}", *include_folders()]
    source = [str(HERE / "native_shapes.c"), "-o", str(path), "-lpthread", "-lm"]
    subprocess.run(["cc", *common, *words, *about, *source], check=True)
    return path


def clean(sanitizer: str, shapes: int, seed: int) -> bool:
    """Whether all kernels pass under a sanitizer, in both precisions."""
    words = ["-O1", "-g", f"-fsanitize={SANITIZERS[sanitizer]}", "-fno-sanitize-recover=all"]
    passed = True
    with tempfile.TemporaryDirectory() as folder:
        for kernel, name in enumerate(KERNELS):
            for real in ("float", "double"):
                program = compiled(kernel, real, words, Path(folder))
                done = subprocess.run([program, str(shapes), str(seed)], check=False)
                sys.stdout.write(f"{sanitizer} {name} {real}: exit code {done.returncode}\n")
                sys.stdout.flush()
                passed &= done.returncode == 0
    return passed


def main() -> None:
    """Run the sanitizers that are asked for."""
    reader = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reader.add_argument("--shapes", type=int, default=100)
    reader.add_argument("--seed", type=int, default=1)
    reader.add_argument("--only", choices=SANITIZERS, action="append")
    words = reader.parse_args()
    if shutil.which("cc") is None:
        sys.exit("no C compiler (cc)")
    found = [clean(name, words.shapes, words.seed) for name in words.only or SANITIZERS]
    sys.exit(not all(found))


if __name__ == "__main__":
    main()
