"""`shoal lab` in a real browser. Skipped, with a reason, where there is no chromium."""

import json
import os
import shlex
import shutil
import signal

import numpy as np
import pytest

import shoal as sh
from live import OWN, TINY, Served
from shoal.cli import main

chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (chromium and driver), reason="no chromium and chromedriver on this machine"
)
pytest.importorskip("starlette", reason="the extra lab is not installed")
pytest.importorskip("uvicorn", reason="the extra lab is not installed")

SLIDER = (
    "[...document.querySelectorAll('.control')].find((c) => c.querySelector('#set-label_scale'))"
)
SLIDER += ".querySelector('[type=range]')"
GUARD = 1800  # seconds after which a wait is a bug; no test depends on it


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("lab"))
    yield served
    served.close()
    assert not [line for line in served.errors if "Traceback" in line]


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    flags = "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-sync"
    flags += " --disable-background-networking --disable-component-update --window-size=1400,1000"
    for flag in (*flags.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    made.set_script_timeout(GUARD)
    yield made
    made.quit()


class Browser:
    """What tests do with a page."""

    def __init__(self, chrome, lab):
        self.chrome, self.lab = chrome, lab

    def open(self, fragment=""):
        self.chrome.get("about:blank")
        self.chrome.get(self.lab.address + (f"#{fragment}" if fragment else ""))

    def run(self, script, *given):
        return self.chrome.execute_script(script, *given)

    def until(self, condition):
        from selenium.webdriver.support.ui import WebDriverWait

        wait = WebDriverWait(self.chrome, GUARD, poll_frequency=0.05)
        return wait.until(lambda _: self.run(f"return {condition}"))

    def text(self, name):
        return self.run("return document.getElementById(arguments[0]).textContent", name)

    def click(self, name):
        self.run("document.getElementById(arguments[0]).click()", name)

    def set(self, name, value):
        """Type a value into a box, or choose it from a menu, as soon as the page has it."""
        box = f"document.getElementById({json.dumps(name)})"
        listed = f"Array.from({box}.options).some((o) => o.value === {json.dumps(str(value))})"
        self.until(f"{box} && ({box}.tagName !== 'SELECT' || {listed})")
        self.run(
            "const box = document.getElementById(arguments[0]); box.value = arguments[1];"
            "box.dispatchEvent(new Event('change', {bubbles: true}));", name, str(value),
        )  # fmt: skip

    def curve(self, name="measured"):
        """A curve of the risk plot: steps and values."""
        return self.run(
            "const found = (document.getElementById('risk').data ?? []).find((c) => c.name =="
            " arguments[0]); return found ? [Array.from(found.x), Array.from(found.y)] : null;",
            name,
        )

    def finished(self):
        self.until("document.getElementById('play').textContent === 'Play again'")
        self.until(drawn(r"Number(document.getElementById('status').textContent.split(' ')[3])"))

    def drop(self, path):
        """Choose a file, as by the dialog."""
        self.chrome.find_element("id", "data-file").send_keys(str(path))

    def dragged(self, name, content):
        """Drag a file over the page, and let it go there."""
        self.run(
            "const file = new File([new Uint8Array(arguments[1])], arguments[0]);"
            "const carried = new DataTransfer(); carried.items.add(file);"
            "for (const kind of ['dragover', 'drop']) document.body.dispatchEvent(new DragEvent("
            "kind, {bubbles: true, cancelable: true, dataTransfer: carried}));",
            name, list(content),
        )  # fmt: skip

    def press(self, *keys):
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.chrome).send_keys(*keys).perform()

    def tab_to(self, condition):
        """Press Tab until the element that has the focus is the one that is meant."""
        from selenium.webdriver.common.keys import Keys

        seen = []
        for _ in range(150):
            self.press(Keys.TAB)
            seen.append(self.run("return document.activeElement.id"))
            if self.run(f"const it = document.activeElement; return {condition}"):
                return
        raise AssertionError(f"never reached {condition}: {seen}")

    def errors(self):
        return [e for e in self.chrome.get_log("browser") if e["level"] == "SEVERE"]

    def requests(self):
        """Addresses that were asked for since the last call, also those that were refused."""
        events = [json.loads(e["message"])["message"] for e in self.chrome.get_log("performance")]
        sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return [event["request"]["url"] for event in sent]

    def narrow(self):
        """A telephone, until the test ends."""
        self.chrome.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True},
        )


def drawn(step):
    """The measured curve reaches a step."""
    return (
        "(() => { const c = (document.getElementById('risk').data ?? []).find((c) => c.name =="
        f" 'measured'); return c && Array.from(c.x).at(-1) >= {step}; }})()"
    )


@pytest.fixture
def browser(chrome, lab):
    page = Browser(chrome, lab)
    chrome.set_window_size(1400, 1000)
    page.errors(), page.requests()  # those of earlier tests
    yield page
    chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert page.errors() == []
    asked = page.requests()
    assert [url for url in asked if url.startswith(lab.origin)]
    assert [url for url in asked if not url.startswith((lab.origin, "data:", "blob:"))] == []


def address(values=TINY, **more):
    from urllib.parse import urlencode

    words = {"target": "wu2023"} | {f"s.{k}": v for k, v in values.items()} | more
    return urlencode(words, doseq=True)


# -------------------------------------------------------------------------------- a short visit


def test_a_visit_curve_gauges_slider_reload_and_a_narrow_screen(browser):
    browser.open(address(at=20))
    browser.finished()
    steps, risk = browser.curve()
    assert (steps[0], steps[-1]) == (0, 20)
    assert "not applicable" in browser.text("verdict")
    assert browser.run("return document.querySelectorAll('#hypotheses .gauge').length") >= 4
    browser.until("document.querySelectorAll('#formula math').length === 2")

    before = browser.run("return document.querySelectorAll('#hypotheses .both')[2].textContent")
    slider = SLIDER
    browser.run(f"const s = {slider}; s.value = 200; s.dispatchEvent(new Event('input'))")
    browser.until(
        "document.querySelectorAll('#hypotheses .both')[2].textContent !== " + json.dumps(before)
    )
    browser.until("location.hash.includes('s.label_scale=')")

    browser.open(address(at=20))  # the link of the first run
    browser.finished()
    assert browser.curve() == [steps, risk]

    browser.narrow()
    browser.open(address(at=20))
    browser.finished()
    assert browser.run("return document.documentElement.scrollWidth") <= 390


# ----------------------------------------------------------------------------------- long visits


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 6))
def test_a_story_to_its_end(browser, number):
    from shoal.live.stories import STORIES

    story = STORIES[number - 1]
    browser.open(address())
    browser.until("document.getElementById('stories').options.length === 6")
    browser.until("lab.status")
    before = browser.run("return lab.status.run")
    browser.set("stories", number)
    for count, step in enumerate(story["steps"], 1):
        title = f"{story['title']} ({count} of {len(story['steps'])})"
        browser.until(f"document.querySelector('#story h2')?.textContent === {json.dumps(title)}")
        if step["play"]:
            target = json.dumps(step["state"]["target"])
            values = " && ".join(
                f"location.hash.includes({json.dumps(f's.{k}={v}')})"
                for k, v in step["state"]["values"].items()
                if v.isalnum()
            )
            browser.until(f"document.getElementById('target').value === {target} && ({values})")
            browser.until(f"lab.status.run > {before} && lab.status.finished")
            before = browser.run("return lab.status.run")
            browser.finished()
            browser.until("document.querySelector('#verdict .badge').textContent.length > 2")
        check_story(browser, number, count)
        browser.run("document.querySelector('#story .main').click()")
    browser.until("document.getElementById('story').hidden")


def check_story(browser, number, count):
    """What the text of a step says is what the page shows."""
    verdict = "document.querySelector('#verdict .badge').textContent"
    proof = "document.getElementById('proof').textContent"
    expected = {
        (1, 1): f"{verdict}.includes('not applicable')",
        (1, 3): f"{verdict} === '✓ holds'",
        (1, 4): f"{verdict}.includes('not applicable')",
        (2, 1): f"{proof}.includes('stuck')",
        (2, 2): f"{proof}.includes('converges')",
        (3, 1): f"{verdict} === '✓ holds'",
        (3, 2): f"{verdict} === '✓ holds'",
        (3, 3): "document.querySelectorAll('#hypotheses .bad').length === 2",
        (4, 1): f"{verdict} === '✓ holds'",
        (4, 2): f"{verdict}.includes('not applicable')",
        (4, 3): f"{verdict}.includes('not applicable')",
        (5, 2): "document.querySelectorAll('#hypotheses .bad').length >= 1",
        (5, 3): f"{proof}.includes('converges')",
    }
    if (number, count) in expected:
        browser.until(expected[number, count])
    assert browser.run("return document.getElementById('alert').hidden"), browser.text("alert")
    if (number, count) == (2, 1):
        assert abs(browser.curve()[1][-1] - 0.05) < 0.005
    if (number, count) in ((2, 2), (2, 3)):
        assert browser.curve()[1][-1] < 1e-6


SMALL = {
    "song2024": {"num_samples": "3", "num_tokens": "2", "dim": "4"},
    "arda2026": {"num_samples": "3", "num_tokens": "2", "dim": "4", "num_heads": "4"},
    "qin2025": {"num_samples": "2", "num_tokens": "2", "dim": "4", "width": "5", "key_dim": "2"},
    "icl2025": {"num_samples": "3", "dim": "2", "context": "3"},
}


@pytest.mark.slow
@pytest.mark.parametrize("target", [*SMALL, "own"])
def test_every_model_plays_and_fits_a_telephone(browser, target):
    from shoal.live.desk import EXAMPLE

    browser.narrow()
    values = SMALL.get(target, {}) | {"num_steps": "6"}
    browser.open(address(values, target=EXAMPLE if target == "own" else target, at=6))
    browser.finished()
    steps, risk = browser.curve()
    assert steps[-1] == 6
    assert all(value > 0 for value in risk)
    browser.until("document.querySelectorAll('#hypotheses .gauge').length")
    browser.until("document.getElementById('formula').textContent.length")
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    browser.run("document.getElementById('settings-fold').open = true")
    browser.run("document.getElementById('more').open = true")
    assert browser.run("return document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
def test_settings_and_step_size_change_while_it_runs(browser):
    values = TINY | {"num_steps": "2000"}
    browser.open(address(values))
    browser.until("lab.status?.total === 2000")
    browser.click("slow")  # so that the run is under way for as long as the test needs
    browser.click("play")
    browser.until(drawn(5))
    browser.set("step-box", "0.0007")
    browser.until("location.hash.includes('change=')")
    browser.click("slow")
    browser.finished()
    assert "step size" in browser.run(
        "return document.getElementById('risk').layout.annotations.map((n) => n.text).join()"
    )
    browser.until("document.getElementById('copy-command').disabled")
    first = browser.curve()
    link = browser.run("return location.hash.slice(1)")
    browser.open(link)
    browser.finished()
    assert browser.curve() == first
    # another setting while it runs: the run begins again and goes on playing
    browser.click("slow")
    browser.click("restart")
    browser.until("document.getElementById('play').textContent === 'Play'")
    browser.click("play")
    browser.until(drawn(5))
    browser.set("set-label_scale", "0.25")
    browser.until("location.hash.includes('label_scale=0.25') && !location.hash.includes('change')")
    browser.until("lab.status.playing")
    browser.click("slow")
    browser.finished()
    assert browser.curve()[1][0] < first[1][0]


@pytest.mark.slow
def test_pin_and_compare_and_the_link_brings_pins_back(browser):
    browser.open(address(at=20))
    browser.finished()
    ghost = browser.curve()
    browser.click("pin")
    browser.set("set-label_scale", "0.5")
    browser.until("location.hash.includes('label_scale=0.5')")
    browser.until("document.getElementById('play').textContent === 'Play'")
    browser.click("play")
    browser.finished()
    assert browser.curve("pinned 1") == ghost
    assert "label_scale default" in browser.text("pins")
    link = browser.run("return location.hash.slice(1)")
    mine = browser.curve()
    browser.open(link)
    browser.finished()
    browser.until("document.getElementById('risk').data.some((c) => c.name === 'pinned 1')")
    assert browser.curve("pinned 1") == ghost
    assert browser.curve() == mine
    # an automatic step is that of the theorem, so another theorem is another curve
    browser.click("pin")
    browser.set("theorems", "kernel_regime")
    browser.until("location.hash.includes('theorem=kernel_regime') && lab.status?.finished")
    browser.until("document.getElementById('pins').textContent.includes('size of theorem a')")
    browser.finished()
    browser.click("pin")
    assert browser.run("return document.querySelectorAll('#pins .pinned').length") == 3


@pytest.mark.slow
def test_the_copied_command_gives_the_same_final_risk(browser, tmp_path, monkeypatch, capsys):
    browser.open(address(TINY | {"label_scale": "0.7"}, at=20, seed=3))
    browser.finished()
    browser.until("document.getElementById('command').textContent.includes('seeds 3')")
    browser.click("copy-command")
    line = browser.until("lab.copied")
    assert line.startswith("shoal certify wu2023.theorem_a")
    monkeypatch.chdir(tmp_path)
    assert main([*shlex.split(line)[1:], "--out", "again"]) == 0
    assert sh.load(tmp_path / "again").risk[0].tolist() == browser.curve()[1]
    browser.click("save")
    browser.until("document.getElementById('taken').textContent.includes('Saved')")
    saved = sh.load(browser.text("taken").partition("folder ")[2])
    assert saved.risk[0].tolist() == browser.curve()[1]
    browser.click("report")
    browser.until("document.querySelector('#taken a')")


@pytest.mark.slow
def test_own_data_a_hostile_file_and_hostile_names(browser, tmp_path):
    rng = np.random.default_rng(0)
    good = tmp_path / "<img src=x onerror=alert(1)>.npz"
    np.savez(good, X=rng.standard_normal((4, 3, 5)), y=rng.standard_normal(4))
    evil = tmp_path / "evil.npz"
    np.savez(evil, X=np.array([{}], dtype=object), y=np.ones(1))
    browser.open(address({"width": "8", "num_steps": "10"}))
    browser.until("document.querySelectorAll('#hypotheses .gauge').length")
    browser.drop(evil)
    browser.until("document.getElementById('alert').textContent.includes('cannot be read')")
    assert len(browser.errors()) == 1  # the refusal itself, 422
    browser.dragged(good.name, good.read_bytes())
    browser.until("document.getElementById('data-note').textContent.includes('X 4 × 3 × 5')")
    browser.finished()
    assert "onerror" in browser.text("data-note")
    assert browser.run("return document.querySelectorAll('#data-note img').length") == 0
    assert browser.run("return document.getElementById('set-dim').value") == "5"
    # hostile words in the address are shown as words
    browser.open(address({"width": "<script>document.title='x'</script>"}))
    browser.until("!document.getElementById('alert').hidden")
    assert browser.run("return document.title") == "shoal lab"
    browser.open("target=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E&pin=target%3Dzz&probe=%3Cb%3E")
    browser.until("!document.getElementById('alert').hidden")
    assert browser.run("return document.querySelectorAll('#alert img').length") == 0


def kill_workers(browser):
    process = browser.lab.process.pid
    with open(f"/proc/{process}/task/{process}/children") as file:
        for child in file.read().split():
            os.kill(int(child), signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_worker_is_told_and_the_page_goes_on(browser):
    values = TINY | {"num_steps": "100000", "every": "100"}
    browser.open(address(values, at=100000))
    browser.until(drawn(1000))
    kill_workers(browser)
    # two workers were killed; the page is told of each, in any order
    browser.until("document.getElementById('alert').textContent.includes('worker ended')")
    assert browser.run("return !document.getElementById('alert').hidden")
    browser.finished()
    assert browser.curve()[0][-1] == 100000


@pytest.mark.slow
def test_what_ends_the_worker_twice_is_not_asked_a_third_time(browser):
    browser.open(address())
    browser.until("document.querySelectorAll('#hypotheses .gauge').length")
    alert = "document.getElementById('alert')"
    for words in ("goes on where it was", "ended again on these settings"):
        browser.until(f"{alert}.hidden && lab.status?.at === 0")
        browser.run("lab.status = null")
        kill_workers(browser)
        browser.until(f"{alert}.textContent.includes({json.dumps(words)})")
    browser.click("play")
    browser.finished()
    assert browser.run(f"return {alert}.hidden")


@pytest.mark.slow
def test_a_model_that_never_ends_is_stopped_by_its_button(chrome, tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    own = Served(tmp_path, f"{tmp_path}/mine.py:model", "--set", "num_steps=4")
    page = Browser(chrome, own)
    page.open()
    page.finished()
    page.set("set-fault", "loop")
    page.until("document.querySelector('#worker button')")
    page.run("document.querySelector('#worker button').click()")
    page.until("document.getElementById('alert').textContent.includes('Stopped')")
    page.set("set-fault", "none")
    page.until("document.getElementById('alert').hidden && lab.status?.total === 4")
    page.click("play")
    page.finished()
    own.close()


@pytest.mark.slow
def test_the_browsers_own_back_returns_to_the_model_before(browser):
    browser.open(address(at=20))
    browser.finished()
    first = browser.curve()
    browser.set("target", "icl2025")
    browser.until("location.hash.includes('target=icl2025') && lab.status?.at === 0")
    browser.chrome.back()
    browser.until("document.getElementById('target').value === 'wu2023'")
    browser.finished()
    assert browser.curve() == first
    browser.chrome.get("about:blank")
    browser.chrome.back()  # a page that the browser kept has lost its stream
    browser.finished()
    assert browser.curve() == first


@pytest.mark.slow
def test_two_tabs_do_not_disturb_each_other(browser):
    values = TINY | {"num_steps": "20000", "every": "20"}
    browser.open(address(values, at=20000))
    first = browser.chrome.current_window_handle
    browser.chrome.switch_to.new_window("tab")
    browser.open(address(TINY | {"label_scale": "0.3"}, at=20))
    browser.finished()
    other = browser.curve()
    browser.chrome.close()  # a closed tab hangs nothing
    browser.chrome.switch_to.window(first)
    browser.finished()
    assert browser.curve()[0][-1] == 20000
    browser.open(address(TINY | {"label_scale": "0.3"}, at=20))
    browser.finished()
    assert browser.curve() == other


@pytest.mark.slow
def test_everything_is_done_by_the_keyboard(browser):
    from selenium.webdriver.common.keys import Keys

    browser.open(address())
    browser.until("document.querySelectorAll('#first-controls .control').length")
    browser.until("document.querySelectorAll('#hypotheses .gauge').length")
    wanted = "target stories step-box step-slider seed set-width set-label_scale play step restart"
    for name in (wanted + " pin prove theorems copy-command save").split():
        browser.tab_to(f"it.id === '{name}'")
    browser.tab_to("it.id === 'step'")
    browser.press(Keys.ENTER)
    browser.until("document.getElementById('status').textContent.startsWith('step 1 of 20')")
    browser.tab_to("it.id === 'play'")
    browser.press(Keys.SPACE)
    browser.finished()
    browser.tab_to("it.id === 'set-label_scale'")
    browser.tab_to("it.type === 'range'")  # its slider is the next stop
    browser.press(Keys.ARROW_RIGHT)
    browser.until("location.hash.includes('s.label_scale=1.1')")
    # when nothing is selected, single letters do it
    browser.open(address())
    browser.until("lab.status?.total === 20")
    browser.press("s")
    browser.until("document.getElementById('status').textContent.startsWith('step 1 of 20')")
    browser.press(" ")
    browser.finished()
    browser.press("p")
    browser.until("document.querySelectorAll('#pins .pinned').length === 1")
    browser.press("r")
    browser.until("document.getElementById('status').textContent.startsWith('step 0 of 20')")


@pytest.mark.slow
def test_probes_theorem_sample_landscape_and_divergence(browser):
    browser.open(address(TINY | {"num_tokens": "3"}, at=20))
    browser.finished()
    browser.run("document.querySelector('#probe-list [value=pl_ratio]').click()")
    browser.until(
        "document.querySelector('[data-probe=pl_ratio] .plot')?.data?.[0].x.length === 21"
    )
    browser.set("theorems", "kernel_regime")
    browser.until(
        "document.getElementById('hypotheses').textContent.includes('kernel moves little')"
    )
    browser.until("document.getElementById('step-marks').textContent.includes('kernel regime')")
    browser.finished()
    browser.set("sample", 1)
    browser.until("document.querySelectorAll('#attention canvas').length === 2")
    browser.click("landscape-button")
    browser.until("document.getElementById('landscape').data?.[0].type === 'contour'")
    browser.set("step-box", "5")
    browser.until("document.getElementById('status').textContent.includes('diverged')")
