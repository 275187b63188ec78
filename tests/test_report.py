"""Pictures and the page: really there, offline, and safe against hostile strings."""

import json
import shutil

import numpy as np
import polars as pl
import pytest

from shoal.cli import main
from shoal.figures import Curve, Figure, Image, Panel, band, figure_from_json, rows
from shoal.papers import PAPERS
from shoal.report import drawing, page
from shoal.report.page import Section
from shoal.store import plain

HOSTILE = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
CURVE = Curve("a <b>", *[np.array([1.0, 2.0, 4.0])] * 4)
FIGURE = Figure(
    "one",
    "Title",
    "Caption",
    (
        Panel("left", "x", "y", (CURVE, CURVE), log_y=True),
        Panel("right", "x", "y", images=(Image("map", np.eye(3)),)),
    ),
)


def test_a_figure_is_drawn_as_png_and_pdf(tmp_path):
    png, pdf = drawing.save(FIGURE, tmp_path)
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert pdf.read_bytes()[:5] == b"%PDF-"


def test_a_figure_survives_json_and_lists_every_number():
    again = figure_from_json(json.loads(json.dumps(plain(FIGURE))))
    assert plain(again) == plain(FIGURE)
    assert len(rows(FIGURE)) == 2 * 3 + 9


def test_a_band_leaves_out_what_cannot_be_shown():
    samples = np.array([[1.0, np.nan, 0.0, 3.0], [2.0, np.inf, -1.0, 5.0]])
    curve = band("a", np.arange(4), samples, positive=True)
    assert curve.x.tolist() == [0, 3]
    assert curve.y.tolist() == [1.5, 4.0]


@pytest.mark.parametrize("name", ["data_assumption", "scaling"])
def test_reproduce_writes_pictures_numbers_and_a_page(capsys, tmp_path, name):
    out = tmp_path / "f"
    assert main(["reproduce", f"wu2023.{name}", "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["files"]) == 3
    for end in ("png", "pdf", "parquet", "json"):
        assert (out / f"{name}.{end}").stat().st_size > 0
    table = pl.read_parquet(out / f"{name}.parquet")
    assert {"panel", "label", "x", "y", "low", "high"} == set(table.columns)
    assert main(["report", str(out)]) == 0
    assert (out / "report.html").is_file()


def test_every_paper_has_figures_with_words():
    for paper in PAPERS.values():
        assert len(paper.figures) >= 7
        assert all(recipe.title for recipe in paper.figures)


def test_the_page_escapes_every_string_and_asks_for_nothing():
    section = Section(
        HOSTILE,
        HOSTILE,
        verdicts=((HOSTILE, "holds"),),
        tables=((HOSTILE, (HOSTILE,), ((HOSTILE,),)),),
        panels=(Panel(HOSTILE, HOSTILE, HOSTILE, (CURVE._replace(label=HOSTILE),)),),
        slides=((HOSTILE, (Image(HOSTILE, np.eye(2)),)),),
        details=((HOSTILE, HOSTILE),),
    )
    text = page.render(HOSTILE, HOSTILE, [section], command=HOSTILE, citations=[HOSTILE])
    ours = text.replace(page._plotly(), "")
    assert "<script>window.hacked" not in ours
    assert "<img src=x" not in ours
    assert "default-src 'none'" in ours
    for outside in ('src="http', 'href="http', "@import", "fetch("):
        assert outside not in ours


def test_reports_of_damaged_things_are_refused(capsys, tmp_path):
    (tmp_path / "ledger.json").write_text('{"claims": [{"id": 3}]}')
    assert main(["report", str(tmp_path)]) == 2
    (tmp_path / "ledger.json").unlink()
    (tmp_path / "x.json").write_text('{"key": 1}')
    assert main(["report", str(tmp_path)]) == 2
    assert main(["report", str(tmp_path / "x.json")]) == 2
    assert capsys.readouterr().out == ""


def test_a_certificate_becomes_a_page(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--set", "num_samples=3", "--set", "width=16", "--steps", "4", "--json"]
    assert main(["certify", "wu2023.theorem_a", *words]) == 0
    (tmp_path / "c.json").write_text(capsys.readouterr().out)
    assert main(["report", "c.json"]) == 0
    assert "not applicable" in (tmp_path / "c.html").read_text()


# -------------------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("no browser: install Debian's chromium and chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--window-size=1200,900",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield made
    made.quit()


def opened(browser, path):
    browser.get(path.resolve().as_uri())
    severe = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    assert severe == []


def test_the_page_of_a_run_works_in_a_browser(browser, capsys, tmp_path):
    # a hostile string travels from the command line through the run folder into the page
    folder = tmp_path / "r"
    words = ["--set", "num_samples=4", "--set", "width=16", "--steps", "6", "--out", str(folder)]
    setting = ["--set", f"images={HOSTILE}", "--probes", "+attention,kernel_eigenvalues"]
    assert main(["train", "wu2023", *words, *setting]) == 0
    assert main(["report", str(folder)]) == 0
    opened(browser, folder / "report.html")
    js = browser.execute_script
    assert js("return window.hacked") is None
    assert HOSTILE in js("return document.body.innerText")
    # curves are really drawn: the loss, the kernel's prediction, and the spectrum
    assert js("return document.querySelectorAll('.chart .scatterlayer .trace').length") >= 4
    assert js("return document.querySelectorAll('.slide .heatmaplayer image').length") >= 1
    # the slider moves the attention map along the steps
    before = js("return document.querySelector('.slide .where').textContent")
    js(
        "const s = document.querySelector('.slide input'); s.value = 6;"
        "s.dispatchEvent(new Event('input'));"
    )
    after = js("return document.querySelector('.slide .where').textContent")
    assert (before, after) == ("step 0", "step 6")
    # nothing was asked from outside
    assert js("return performance.getEntriesByType('resource').length") == 0
    # a phone does not scroll sideways
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True},
    )
    browser.refresh()
    wide, room = js("return [document.documentElement.scrollWidth, innerWidth]")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wide <= room + 1


def test_the_ledger_works_in_a_browser(browser, capsys, tmp_path):
    out = tmp_path / "ledger"
    claims = ["wu2023.attention_tends_to_uniform", "wu2023.rank_is_needed"]
    assert main(["claims", *claims, "--out", str(out)]) == 0
    opened(browser, out / "index.html")
    js = browser.execute_script
    assert js("return document.querySelectorAll('.claim').length") == 2
    assert js("return document.querySelectorAll('.claim .badge.supported').length") == 1
    js("document.querySelectorAll('.claim details').forEach(d => d.open = true)")
    from selenium.webdriver.support.wait import WebDriverWait

    drawn = "return document.querySelectorAll('.claim .scatterlayer .trace').length"
    WebDriverWait(browser, 20).until(lambda b: b.execute_script(drawn) >= 2)
