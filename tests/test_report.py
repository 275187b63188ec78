"""Pictures and the page: really there, offline, and safe against hostile strings."""

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import shoal as sh
from shoal.cli import main
from shoal.figures import Curve, Figure, Image, Panel, band, figure_from_json, rows
from shoal.jsons import plain
from shoal.pages import drawing, page, sections
from shoal.pages.page import Section
from shoal.pages.svg import Gauge
from shoal.papers import PAPERS

TOY = str(Path(__file__).parent / "toy_paper.py")
TINY = {"num_samples": 4, "num_tokens": 3, "dim": 6, "width": 16, "num_steps": 6}
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


def run_ok(*words):
    assert main([str(word) for word in words]) == 0


# -------------------------------------------------------------------------------------- figures


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


def test_a_seed_that_reaches_zero_stays_in_the_median():
    samples = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 8.0], [5.0, -1.0]])
    curve = band("a", np.arange(2), samples, positive=True)
    assert curve.x.tolist() == [0]  # the median of the second column is zero, not eight
    curve = band("a", np.arange(2), samples[1:3], positive=True)
    assert curve.y.tolist() == [2.5, 4.0]
    assert (curve.low > 0).all()


def check_reproduction(capsys, out, target, name):
    run_ok("reproduce", f"{target}.{name}", "--out", out, "--json")
    said = json.loads(capsys.readouterr().out)
    assert len(said["files"]) == 3
    for end in ("png", "pdf", "parquet", "json"):
        assert (out / f"{name}.{end}").stat().st_size > 0
    table = pl.read_parquet(out / f"{name}.parquet")
    assert {"panel", "label", "x", "y", "low", "high"} == set(table.columns)
    run_ok("report", out)
    return (out / "report.html").read_text()


def test_reproduce_writes_pictures_numbers_and_a_page(capsys, tmp_path):
    text = check_reproduction(capsys, tmp_path / "f", TOY, "width")
    assert "Loss by width" in text
    # the page cites the paper whose figure it is, and no other
    assert "J. Doe (2024)" in text
    assert not any(paper.citation() in text for paper in PAPERS.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["data_assumption", "scaling"])
def test_reproduce_makes_a_paper_s_figures(capsys, tmp_path, name):
    text = check_reproduction(capsys, tmp_path / "f", "wu2023", name)
    cited = [key for key, paper in PAPERS.items() if paper.citation() in text]
    assert cited == ["wu2023"]


def test_every_paper_has_figures_with_words():
    for paper in PAPERS.values():
        assert len(paper.figures) >= 4
        assert all(figure.title and figure.source for figure in paper.figures)
        assert len({figure.key for figure in paper.figures}) == len(paper.figures)


# ---------------------------------------------------------------------------------------- pages


@pytest.fixture(scope="module")
def run():
    return sh.train(sh.setup("wu2023", seeds=(0, 2), **TINY), probes="+kernel_distance")


def test_the_page_escapes_every_string_and_asks_for_nothing():
    section = Section(
        HOSTILE,
        HOSTILE,
        verdicts=((HOSTILE, "holds"),),
        tables=((HOSTILE, (HOSTILE,), ((HOSTILE,),)),),
        panels=(Panel(HOSTILE, HOSTILE, HOSTILE, (CURVE._replace(label=HOSTILE),)),),
        slides=((HOSTILE, (Image(HOSTILE, np.eye(2)),)),),
        details=((HOSTILE, HOSTILE),),
        group=HOSTILE, finding=HOSTILE, label=HOSTILE, source=HOSTILE, seen=HOSTILE,
        formula=f"$${HOSTILE}$$ $\\text{{{HOSTILE}}}$ $\\href{{javascript:hacked()}}{{x}}$",
        more=((HOSTILE, (HOSTILE,), ((HOSTILE,),)),), more_details=((HOSTILE, HOSTILE),),
        files=((HOSTILE, "x"),), gauges=(Gauge(HOSTILE, 2.0, HOSTILE, None),),
    )  # fmt: skip
    text = page.render(HOSTILE, HOSTILE, [section], command=HOSTILE, citations=[HOSTILE])
    assert "<script>window.hacked" not in text
    assert "<img src=x" not in text
    assert "default-src 'none'" in text
    for outside in ('src="http', 'href="http', "@import", "fetch("):
        assert outside not in text


def test_the_loss_is_shown_with_what_was_proved_and_predicted():
    made = sh.train(sh.setup(TOY), step_size="theorem_1", steps=10)
    found = [made.certify("theorem_1").to_json(curves=True)]
    labels = [curve.label for curve in sections.loss_panel(made, found).curves]
    assert labels[1:] == ["theorem_1: proved bound", "predicted by the initial kernel"]
    bound = sections.loss_panel(made, found).curves[1]
    np.testing.assert_allclose(bound.y[0], made.risk[0, 0], rtol=1e-12)


def test_probes_with_parts_share_a_panel(run):
    panels = {panel.title: panel for panel in sections.probe_panels(run)}
    assert {curve.label for curve in panels["movement"].curves} == {"W_Q", "W_K", "W_V", "w_O"}
    assert len(panels["pl ratio"].curves) == 1


def test_runs_certificates_and_figures_become_one_page(run, tmp_path):
    path = sh.report(run, run.certify("kernel_regime"), FIGURE, out=tmp_path / "p.html")
    text = path.read_text()
    for words in ("wu2023.kernel_regime", "What came out", "Caption", "movement", "<math"):
        assert words in text
    with pytest.raises(sh.InputError, match="cannot report on int"):
        sh.report(3)


def test_several_things_become_one_page(run, tmp_path, capsys):
    run.save(tmp_path / "r", [run.certify("theorem_c")])
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "one.json").write_text(
        json.dumps(plain(FIGURE._asdict() | {"paper": "wu2023"}))
    )
    out = tmp_path / "all.html"
    run_ok("report", tmp_path / "r", tmp_path / "f", "--out", out, "--json")
    assert json.loads(capsys.readouterr().out) == {"page": str(out)}
    text = out.read_text()
    for title in (">r</h2>", "wu2023.theorem_c", ">f</h2>", "Title"):
        assert title in text
    assert text.count(PAPERS["wu2023"].citation()) == 1


def test_a_certificate_becomes_a_page(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [f"--set={name}={value}" for name, value in TINY.items()]
    run_ok("certify", "wu2023.theorem_a", *words, "--json")
    (tmp_path / "c.json").write_text(capsys.readouterr().out)
    run_ok("report", "c.json")
    text = (tmp_path / "c.html").read_text()
    assert "not applicable" in text
    assert PAPERS["wu2023"].citation() in text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ledger.json", "[]"),
        ("x.json", '{"key": 1}'),
        ("x.json", '{"panels": 3}'),
        ("x.json", "["),
        ("c.json", '{"paper": "wu2023", "theorem": "theorem_a", "results": [{}]}'),
        ("c.json", '{"paper": "nobody2020", "theorem": "theorem_a", "results": []}'),
        ("c.json", '{"paper": 3, "theorem": [], "results": 7}'),
    ],
)
def test_reports_of_damaged_things_are_refused(capsys, tmp_path, name, content):
    (tmp_path / name).write_text(content)
    path = tmp_path / name if name == "c.json" else tmp_path
    assert main(["report", str(path)]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_notebooks_show_results_as_html_with_formulas(run):
    from shoal.pages.words import math_html

    text = run.certify("theorem_c")._repr_html_()
    assert "<table>" in text
    assert "seed 2" in text
    assert "<td>2</td>" in run._repr_html_()
    assert "<math" in math_html(r"$\alpha \le 1$ & more")
    assert "&amp; more" in math_html(r"$\alpha \le 1$ & more")


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
    words = [f"--set={name}={value}" for name, value in TINY.items()]
    words += ["--set", f"images={HOSTILE}", "--probes", "+attention,kernel_eigenvalues"]
    run_ok("train", "wu2023", *words, "--out", folder)
    run_ok("report", folder)
    opened(browser, folder / "report.html")
    js = browser.execute_script
    assert js("return window.hacked") is None
    assert HOSTILE in js("return document.body.innerText")
    # curves are really drawn: the loss, the kernel's prediction, and the spectrum
    assert js("return document.querySelectorAll('.chart path.line').length") >= 4
    # the slider moves the attention map along the steps
    where = "return document.querySelector('.film .frame.now .where').textContent"
    before = js(where)
    js(
        "const s = document.querySelector('.film input'); s.value = 6;"
        "s.dispatchEvent(new Event('input'));"
    )
    assert (before, js(where)) == ("step 0", "step 6")
    # pointing at the end of a curve tells the last recorded risk, to four digits
    last = np.median(
        pl.read_parquet(folder / "trajectory.parquet").filter(pl.col("step") == 6)["risk"]
    )
    js(
        "const s = document.querySelector('svg[data-scale]'), b = s.getBoundingClientRect();"
        "s.dispatchEvent(new PointerEvent('pointermove', {clientX: b.right, clientY: b.top}));"
    )
    told = js("return document.querySelector('.tip').textContent").splitlines()
    assert told[0] == "step 6"
    assert told[1] == f"measured: {float(f'{last:.4g}'):g}"
    # a name in the legend hides its curve
    js("document.querySelector('.legend button[data-k=\"1\"]').click()")
    assert js("return getComputedStyle(document.querySelector('g.k1')).display") == "none"
    # formulas are set as formulas
    assert js("return document.querySelectorAll('.formula math mfrac').length") >= 1
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


@pytest.mark.slow
def test_the_ledger_works_in_a_browser(browser, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "pages"
    run_ok("claims", f"{TOY}.learns", "--until-decided", "--out", out)
    opened(browser, out / "index.html")
    js = browser.execute_script
    assert js("return document.querySelectorAll('article.card').length") == 1
    assert js("return document.querySelectorAll('article.card path.limit').length") >= 1
    hidden = "return getComputedStyle(document.querySelector('article.card')).display"
    assert js(hidden) != "none"
    js("document.querySelector('#show-exploratory').click()")
    assert js(hidden) == "none"
    for name in ("index.html", "doe2024.learns.v1.html"):
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True},
        )
        opened(browser, out / name)
        wide, room = js("return [document.documentElement.scrollWidth, innerWidth]")
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        assert wide <= room + 1, name
