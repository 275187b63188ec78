"""How fast is `shoal lab`? In a headless Chromium: the first curve, a slider, steps a second.

Three questions: seconds from the command to the first curve, with an empty cache of compiled
programs and with a full one; how long the gauges take to follow a slider that compiles nothing,
over fifty moves, and how much of that is the worker's; and the time of a run of many recorded
steps on the page against the same run by `shoal train` in a process that has it compiled. On a busy
machine processor times say more than seconds, so both are printed.
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
setTimeout(() => {{ look.disconnect(); done(null); }}, 120000);
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
    made.set_script_timeout(1800)
    try:
        yield made
    finally:
        made.quit()


def processor(root: int, *, deep: bool = True) -> float:
    """Seconds of processor time that a process, and with ``deep`` those below it, have used."""
    text = Path(f"/proc/{root}/stat").read_text().rpartition(")")[2].split()
    used = (int(text[11]) + int(text[12])) / os.sysconf("SC_CLK_TCK")
    below = Path(f"/proc/{root}/task").glob("*/children") if deep else ()
    return used + sum(processor(int(pid)) for one in below for pid in one.read_text().split())


@contextlib.contextmanager
def lab(cache: Path) -> Iterator[tuple[str, int]]:
    """A running lab: its address, and its process."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal", "lab", "--no-open", "--json"],
            stdout=subprocess.PIPE, text=True, cwd=folder,
            env=os.environ | {"SHOAL_CACHE_DIR": str(cache)},
        )  # fmt: skip
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["address"], process.pid
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()


def address(base: str, **more: Any) -> str:
    """The page of a small model in a certain state."""
    values = {f"s.{name}": value for name, value in SMALL.items()}
    return f"{base}#{urlencode({'target': 'wu2023'} | values | more)}"


def first_curve(chrome: Any, cache: Path) -> tuple[float, float]:
    """Seconds from the command to a curve on the page, and of the lab's processor time."""
    started = time.perf_counter()
    with lab(cache) as (base, server):
        chrome.get(address(base, at=20))
        chrome.execute_async_script(POINTS, 1)
        return time.perf_counter() - started, processor(server)


def moves(chrome: Any, base: str, server: int) -> tuple[list[float], list[float], dict[str, float]]:
    """Milliseconds from each move of a slider to the gauges that follow it; the worker's part.

    Also the milliseconds of processor time per move, of each side.
    """
    chrome.get(address(base, at=20))
    chrome.execute_async_script(POINTS, 19)
    last = int(chrome.execute_script(f"return {HANDLE}.max"))
    places = [(7 + 13 * k) % last for k in range(MOVES)]

    def used() -> dict[str, float]:
        alone, both = processor(server, deep=False), processor(server)
        browser = processor(chrome.service.process.pid)
        return {"worker": both - alone, "server": alone, "browser": browser}

    before = used()
    took = [chrome.execute_async_script(MOVE, place) for place in places]
    after = used()
    script = f"return lab.latencies.slice(-{MOVES}).map((one) => one.worker)"
    spent = {side: 1000 * (after[side] - before[side]) / MOVES for side in after}
    return sorted(took), sorted(chrome.execute_script(script)), spent


def rates(chrome: Any, base: str, server: int, cache: Path) -> Iterator[tuple[float, ...]]:
    """Steps a second of long runs, as the page shows them and by `shoal train`, in turns.

    And the processor time of each: on the page all that the worker does, from opening the page on.
    """
    code = (
        "import sys, time, shoal.cli as cli\n"
        "for _ in range(2):\n"
        "    started, used = time.perf_counter(), time.process_time(); cli.main(sys.argv[1:])\n"
        "print(time.perf_counter() - started, time.process_time() - used)"
    )
    chrome.get(address(base, at=STEPS, **{"s.num_steps": STEPS}))
    chrome.execute_async_script(POINTS, STEPS)  # what is compiled once
    for seed in range(1, PAIRS + 1):
        chrome.get("about:blank")
        before = processor(server)
        chrome.get(address(base, seed=seed, at=STEPS, **{"s.num_steps": STEPS}))
        chrome.execute_async_script(POINTS, STEPS)
        worked = processor(server) - before
        status = chrome.execute_script("return document.getElementById('status').textContent")
        shown = float(status.split("·")[-1].split()[0])
        line = chrome.execute_script("return document.getElementById('command').textContent")
        given = ["train", "wu2023", *shlex.split(line)[3:]]  # the same settings, seed and probes
        said = subprocess.run(
            [sys.executable, "-c", code, *given], capture_output=True, text=True, check=True,
            env=os.environ | {"SHOAL_CACHE_DIR": str(cache)},
        )  # fmt: skip
        seconds, used = map(float, said.stdout.splitlines()[-1].split())
        yield shown, STEPS / seconds, worked, used


def main() -> None:
    """Measure all three and print what came out."""
    say = functools.partial(print, flush=True)
    with tempfile.TemporaryDirectory() as name, browser() as chrome:
        cache = Path(name)
        say(f"{os.cpu_count()} cores; load {' '.join(f'{x:.1f}' for x in os.getloadavg())}")
        seconds, used = first_curve(chrome, cache)
        say(f"first curve, empty cache: {seconds:.1f} s ({used:.1f} s of processor time)")
        warm = sorted(first_curve(chrome, cache) for _ in range(3))
        seconds, used = warm[1]
        say(f"first curve, full cache: {seconds:.1f} s ({used:.1f}), median of 3")
        with lab(cache) as (base, server):
            took, worker, spent = moves(chrome, base, server)
            say(
                f"gauges after {len(took)} moves: median {statistics.median(took):.0f} ms, "
                f"quartiles {took[len(took) // 4]:.0f} and {took[3 * len(took) // 4]:.0f}; "
                f"the worker's part {statistics.median(worker):.0f} ms; processor time per move: "
                + ", ".join(f"{side} {x:.0f} ms" for side, x in spent.items())
            )
            for shown, trained, lab_used, train_used in rates(chrome, base, server, cache):
                ratio = shown / trained
                say(
                    f"steps a second: page {shown:.0f}, train {trained:.0f}: {ratio:.2f}; "
                    f"processor time: lab {lab_used:.2f} s, train {train_used:.2f} s"
                )
        say(f"load {' '.join(f'{x:.1f}' for x in os.getloadavg())}")


if __name__ == "__main__":
    main()
