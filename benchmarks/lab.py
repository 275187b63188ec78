"""How fast is `shoal lab`? In a headless Chromium: the first curve, a slider, steps a second.

Three questions: seconds from the command to the first curve, with an empty cache of compiled
programs and with a full one; how long the gauges take to follow a slider that compiles nothing,
over fifty moves; and the time of a run of many recorded steps on the page against the same run by
`shoal train` in a process that has it compiled.
"""

import contextlib
import functools
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

SMALL = {"width": "64", "num_samples": "8", "num_tokens": "4", "dim": "8"}
MOVES, PAIRS, STEPS = 50, 3, 20_000
HANDLE = (
    "[...document.querySelectorAll('.control')].find((c) => c.querySelector('#set-label_scale'))"
    ".querySelector('[type=range]')"
)
MOVE = f"""
const done = arguments[1], shown = () => document.querySelectorAll('#hypotheses .both')[2];
const before = shown().textContent, slider = {HANDLE}, started = performance.now();
const look = new MutationObserver(() => {{
    if (shown() && shown().textContent !== before) {{
        look.disconnect(); done(performance.now() - started);
    }}
}});
look.observe(document.getElementById('hypotheses'),
    {{subtree: true, childList: true, characterData: true}});
setTimeout(() => {{ look.disconnect(); done(null); }}, 5000);
slider.value = arguments[0]; slider.dispatchEvent(new Event('input', {{bubbles: true}}));
"""
POINTS = """
const done = arguments[1], started = performance.now();
const look = () => {
    const curve = (document.getElementById('risk')?.data ?? []).find((c) => c.name === 'measured');
    if (curve && Array.from(curve.x).at(-1) >= arguments[0]) done(performance.now() - started);
    else requestAnimationFrame(look);
};
look();
"""


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"):
        options.add_argument(flag)
    service = webdriver.ChromeService(shutil.which("chromedriver") or "chromedriver")
    made = webdriver.Chrome(options=options, service=service)
    made.set_script_timeout(60)
    try:
        yield made
    finally:
        made.quit()


@contextlib.contextmanager
def lab(cache: Path) -> Iterator[str]:
    """A running lab; its address."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal", "lab", "--no-open", "--json"],
            stdout=subprocess.PIPE, text=True, cwd=folder,
            env=os.environ | {"SHOAL_CACHE_DIR": str(cache)},
        )  # fmt: skip
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()


def address(base: str, **more: Any) -> str:
    """The page of a small model in a certain state."""
    values = {f"s.{name}": value for name, value in SMALL.items()}
    return f"{base}#{urlencode({'target': 'wu2023'} | values | more)}"


def first_curve(chrome: Any, cache: Path) -> float:
    """Seconds from the command to a curve on the page."""
    started = time.perf_counter()
    with lab(cache) as base:
        chrome.get(address(base, at=20))
        chrome.execute_async_script(POINTS, 1)
        return time.perf_counter() - started


def moves(chrome: Any, base: str) -> list[float]:
    """Milliseconds from each move of a slider to the gauges that follow it."""
    chrome.get(address(base, at=20))
    chrome.execute_async_script(POINTS, 19)
    last = int(chrome.execute_script(f"return {HANDLE}.max"))
    places = [(7 + 13 * k) % last for k in range(MOVES)]
    return [chrome.execute_async_script(MOVE, place) for place in places]


def rates(chrome: Any, base: str, cache: Path) -> tuple[list[float], list[float]]:
    """Steps a second of a long run, as the page shows them and by `shoal train`, in turns."""
    page, command = [], []
    code = (
        "import sys, time, shoal.cli as cli\n"
        "for _ in range(2):\n"
        "    started = time.perf_counter(); cli.main(sys.argv[1:])\n"
        "print(time.perf_counter() - started)"
    )
    for seed in range(PAIRS):
        chrome.get("about:blank")
        chrome.get(address(base, seed=seed, at=STEPS, **{"s.num_steps": STEPS}))
        chrome.execute_async_script(POINTS, STEPS)
        status = chrome.execute_script("return document.getElementById('status').textContent")
        page.append(float(status.split("·")[-1].split()[0]))
        line = chrome.execute_script("return document.getElementById('command').textContent")
        given = ["train", "wu2023", *shlex.split(line)[3:]]  # the same settings, seed and probes
        said = subprocess.run(
            [sys.executable, "-c", code, *given], capture_output=True, text=True, check=True,
            env=os.environ | {"SHOAL_CACHE_DIR": str(cache)},
        )  # fmt: skip
        command.append(STEPS / float(said.stdout.splitlines()[-1]))
    return page, command


def main() -> None:
    """Measure all three and print what came out."""
    say = functools.partial(print, flush=True)
    with tempfile.TemporaryDirectory() as name, browser() as chrome:
        cache = Path(name)
        say(f"first curve, empty cache: {first_curve(chrome, cache):.1f} s")
        warm = [first_curve(chrome, cache) for _ in range(3)]
        say(f"first curve, full cache: {statistics.median(warm):.1f} s (median of 3)")
        with lab(cache) as base:
            took = sorted(moves(chrome, base))
            say(
                f"gauges after {len(took)} moves: median {statistics.median(took):.0f} ms, "
                f"quartiles {took[len(took) // 4]:.0f} and {took[3 * len(took) // 4]:.0f}"
            )
            page, command = rates(chrome, base, cache)
        for shown, trained in zip(page, command, strict=True):
            say(f"steps a second: page {shown:.0f}, train {trained:.0f}: {shown / trained:.2f}")


if __name__ == "__main__":
    main()
