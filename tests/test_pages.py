"""How pages draw: scales, ticks, heat maps, words, and what a reader sees without scripts."""

import base64
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import shoal as sh
from shoal.cli import main
from shoal.figures import Curve, Figure, Image, Panel, Surface, figure_from_json
from shoal.jsons import plain
from shoal.pages import images, page, scales, svg, theorems
from shoal.pages.page import Section
from shoal.pages.words import formula, math_html, words

SMALL = 1_500_000  # bytes of a page
TINY = {"num_samples": 3, "num_tokens": 2, "dim": 6, "width": 16}


def line(label, x, y):
    x, y = np.asarray(x, float), np.asarray(y, float)
    return Curve(label, x, y, y, y)


# ------------------------------------------------------------------------------------- scales


@settings(deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_linear_ticks_are_round_even_and_inside(low, span):
    assume(span >= 1e-9 * abs(low))  # a narrower axis counts from a base
    ticks = scales.linear_ticks(low, low + span)
    assert 2 <= len(ticks) <= scales.MOST_TICKS + 1
    steps = np.diff(ticks)
    np.testing.assert_allclose(steps, steps[0], rtol=1e-9, atol=1e-14 * np.abs(ticks).max())
    assert f"{steps[0]:.0e}"[0] in "125"
    assert ticks[0] >= low - 1e-6 * span
    assert ticks[-1] <= low + span * (1 + 1e-6)


@settings(deadline=None)
@given(st.floats(-200, 200), st.floats(0.05, 100))
def test_log_ticks_lie_inside_and_are_at_least_two(power, decades):
    low, high = 10.0**power, 10.0 ** (power + decades)
    ticks = scales.log_ticks(low, high)
    assert 2 <= len(ticks) <= 8
    assert ticks[0] >= low * (1 - 1e-6)
    assert ticks[-1] <= high * (1 + 1e-6)


def test_a_very_narrow_axis_counts_from_a_round_number():
    drawn = svg.chart(Panel("sigma", "step", "sigma", (line("a", [0, 1], [28.548961, 28.548964]),)))
    assert "σ, minus 28.54896<" in drawn


def test_powers_and_indices_of_a_drawn_text_end_where_they_end():
    drawn = svg.gauges(
        [svg.Gauge("step <= min(a / beta^2, b / (L_J |r_0|))", 2.0, "3e-4 ≤ 1", False)]
    )
    (name,) = re.findall(r'class="name">(.*?)</text>', drawn)
    raised = re.findall(r'<tspan dy="-5" class="power">(.*?)</tspan>', name)
    lowered = re.findall(r'<tspan dy="3" class="power">(.*?)</tspan>', name)
    assert (raised, lowered) == (["2"], ["J", "0"])
    assert re.sub("<[^>]+>", "", name) == "step ≤ min(a / β2, b / (LJ |r0|))"
    shifts = [int(dy) for dy in re.findall(r'dy="(-?\d+)"', name)]
    assert sum(shifts) == 0  # the text ends on its line


def test_a_long_name_of_a_hypothesis_takes_two_lines_and_moves_what_follows():
    name = "activation: its second derivative is bounded (smooth_leaky, gelu)"
    long, short = (
        svg.gauges([svg.Gauge(first, 0.5, "1 ≤ 2", True), svg.Gauge("b", 0.5, "1 ≤ 2", True)])
        for first in (name, "a")
    )
    lines = re.findall(r'class="name">(.*?)</text>', long)
    assert " ".join(lines[:-1]) == name
    assert max(map(len, lines)) <= svg.LONG
    bar = re.compile(r'class="track" d="M6 (\S+)H')
    below = [[float(y) for y in bar.findall(drawn)] for drawn in (long, short)]
    assert [high - low for high, low in zip(*below, strict=True)] == [svg.NEXT, svg.NEXT]


def test_a_certificate_shows_what_differs_from_the_defaults_and_folds_the_rest():
    found = certificate("holds", ("a", 1.0, 2.0, True, 0.5))
    found["setting"] = {"width": 64, "dim": 20}
    _, setting = theorems.certificate_sections(found, {"width": 256, "dim": 20})
    assert setting.details == (("width", "64"),)
    assert setting.more_details == (("width", "64"), ("dim", "20"))


def test_a_wide_table_stands_below_its_chart():
    def beside(columns):
        head = tuple(map(str, range(columns)))
        panel = Panel("p", "x", "y", (line("a", [0, 1], [1, 2]),))
        section = Section("a", tables=(("", head, (head,)),), panels=(panel,))
        return 'class="beside"' in page.render("t", "", [section], command="", citations=())

    assert beside(page.MOST_BESIDE)
    assert not beside(page.MOST_BESIDE + 1)


def test_a_long_name_of_an_axis_stands_above_the_picture():
    name = "orders of the loss over its start, one connection alone over the other one alone"
    drawn = svg.chart(Panel("p", "x", name, (line("a", [0, 1], [1, 2]),)))
    above, picture = drawn.split("<svg", 1)
    assert f"{name}:" in above
    assert f">{name}<" not in picture


def test_curves_limits_and_scales_stand_at_the_right_pixels():
    panel = Panel("", "n", "risk", (line("a", [0, 10], [1.0, 100.0]),), log_y=True,
                  limits=(("limit", 10.0),))  # fmt: skip
    drawn = svg.chart(panel, y_range=(1.0, 100.0))
    path = re.search(r'class="line" d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', drawn)
    _, y_first, x_last, y_last = map(float, path.groups())
    bottom, top = svg.HIGH - svg.FOOT, svg.TOP
    assert (y_first, x_last, y_last) == (bottom, svg.WIDE - svg.RIGHT, top)
    limit = re.search(r'path class="limit" d="M[\d.]+ ([\d.]+)H', drawn)
    assert float(limit[1]) == (bottom + top) / 2  # ten is half way from 1 to 100
    assert "<button" not in drawn  # no legend for one curve


def test_what_lies_beyond_the_frame_is_drawn_on_its_edge():
    panel = Panel("", "n", "v", (line("a", [1, 2, 3], [0.0, 0.5, 9.0]),), points=True)
    drawn = svg.chart(panel, y_range=(0.0, 1.0))
    assert len(re.findall(r"h0", re.search(r'class="dots" d="([^"]*)"', drawn)[1])) == 2
    beyond = re.search(r'class="beyond" d="M[\d.]+ ([\d.]+)h0"', drawn)
    assert float(beyond[1]) == svg.TOP


def test_heat_maps_are_read_by_another_library():
    from matplotlib.image import imread

    values = np.array([[0.0, 0.5], [1.0, np.nan]])
    seen = imread(io.BytesIO(images.png(values, 0.0, 1.0)))
    first, last = (np.array([int(c[k : k + 2], 16) for k in (1, 3, 5)]) / 255
                   for c in (images.STOPS[0], images.STOPS[-1]))  # fmt: skip
    np.testing.assert_allclose(seen[0, 0, :3], first, atol=1e-6)
    np.testing.assert_allclose(seen[1, 0, :3], last, atol=1e-6)
    assert seen[:, :, 3].tolist() == [[1, 1], [1, 0]]


def test_heat_maps_that_are_compared_share_one_scale():
    panels = [Panel(t, "x", "y", images=(Image(t, np.full((2, 2), v)),))
              for t, v in (("a", 0.25), ("b", 4.0))]  # fmt: skip
    text = page.render("t", "", [Section("s", panels=tuple(panels))], command="", citations=[])
    maps = re.findall(r'href="(data:image/png[^"]*)"[^>]*class="cells"', text)
    whole = np.full((2, 2), 0.25)
    assert maps[0] == images.data_uri(whole, 0.0, 4.0) != images.data_uri(whole, 0.0, 0.25)


def test_surfaces_and_solids_are_drawn():
    x = np.linspace(-1, 1, 9)
    plane = Surface("risk", x, x, x[:, None] ** 2 + x[None] ** 2)
    for solid in (False, True):
        drawn = svg.chart(Panel("p", "u", "v", surface=plane, solid=solid))
        assert drawn.count("<polygon") == (64 if solid else 0)
        assert ("<image" in drawn) is not solid


def test_limits_and_notes_survive_json():
    panel = Panel("p", "x", "y", (line("a", [0, 1], [1, 2]),), limits=(("most", 1.5),), note="why")
    figure = Figure("k", "t", "c", (panel,))
    again = figure_from_json(json.loads(json.dumps(plain(figure))))
    assert again.panels[0].limits == (("most", 1.5),)
    assert plain(again) == plain(figure)
    old = plain(figure)
    del old["panels"][0]["limits"], old["panels"][0]["note"]  # as 0.2 wrote it
    assert figure_from_json(old).panels[0].limits == ()


# -------------------------------------------------------------------------------------- words


@pytest.mark.parametrize("latex", [
    r"\text{<img src=x onerror=hacked()>}", r"\href{javascript:hacked()}{x}", "{", r"\frac{",
    r"\style{background:url(x)}{y}", r"a & <b>", r"\mbox{<script>hacked()</script>}",
])  # fmt: skip
def test_a_hostile_formula_brings_no_markup(latex):
    found = formula(latex)
    tags = set(re.findall(r"<\s*/?\s*([a-zA-Z]+)", found))
    assert tags <= {"code", "math", "mrow", "mi", "mo", "mn", "mfrac"}
    assert "href=" not in found
    assert "style=" not in found


@settings(deadline=None)
@given(st.text())
def test_any_text_is_escaped(text):
    found = str(words(text.replace("$", "")))
    left = re.sub(r"</?(i|sub|sup|br)>", "", found)
    assert "<" not in left
    assert ">" not in left


def test_formulas_become_mathml():
    assert math_html(r"a < $\frac{1}{2}$").count("<mfrac>") == 1


# ------------------------------------------------------------------------------- what is told


def certificate(verdict, *lines):
    made = [dict(zip(("name", "lhs", "rhs", "holds", "margin"), one, strict=True)) for one in lines]
    result = {"seed": 0, "verdict": verdict, "hypotheses": made, "conclusions": [],
              "predicted_rate": 0.5, "measured_rate": 0.75}  # fmt: skip
    return {"paper": "p", "theorem": "t", "statement": "S.", "source": "ours", "results": [result]}


def test_a_theorem_is_told_in_a_sentence_with_its_worst_hypothesis():
    found = certificate("not applicable", ("a", 1.0, 2.0, True, 0.5), ("b", 30.0, 2.0, False, -14),
                        ("c", 3.0, 2.0, False, -0.5))  # fmt: skip
    card = theorems.theorem_section(found)
    assert card.seen == ("2 of 3 hypotheses fail, so nothing is proved. Farthest off: b (30 > 2).")
    assert [(g.ratio, g.holds) for g in card.gauges] == [(0.5, True), (15.0, False), (1.5, False)]
    good = theorems.theorem_section(certificate("holds", ("a", 1.0, 2.0, True, 0.5)))
    assert good.seen.endswith("A step loses 0.75 of the risk; proved are 0.5.")


def test_a_page_leads_with_its_findings_and_shows_only_what_was_set(tmp_path):
    run = sh.train(sh.setup("wu2023", **TINY), steps=5, probes=[])
    text = sh.report(run, run.certify("theorem_c"), out=tmp_path / "p.html").read_text()
    first = text.index("What came out")
    assert first < text.index("<nav") < text.index('class="card"')
    shown = text[text.index("<dl>") : text.index("All settings")]
    assert re.findall(r"<dt>(\w+)</dt>", shown)[:4] == list(TINY)
    assert "<dt>score_exponent</dt>" not in shown
    assert "<dt>score_exponent</dt>" in text  # folded
    assert len(text) < SMALL / 5


def test_attention_of_every_layer_is_a_film_of_its_own(tmp_path):
    from matplotlib.image import imread

    words = {"num_samples": 2, "num_tokens": 3, "dim": 4, "width": 5, "key_dim": 2, "num_layers": 2}
    run = sh.train(sh.setup("qin2025", **words), steps=2, probes=["attention"])
    text = sh.report(run, out=tmp_path / "p.html").read_text()
    films = [part.split("</div>")[0] for part in text.split('<div class="film">')[1:]]
    assert ["layer 1." in films[0], "layer 2." in films[1]] == [True, True]
    maps = np.asarray(run.probes["attention"])[0, :, 0]  # step, layer, query, key
    for layer, film in enumerate(films):
        (first, *_) = re.findall(r'src="data:image/png;base64,([^"]+)"', film)
        shown = imread(io.BytesIO(base64.b64decode(first)))
        assert shown.shape[:2] == (3, 3)
        expected = imread(io.BytesIO(images.png(maps[0, layer], 0.0, maps.max())))  # one scale
        assert (shown == expected).all()


SHORT = {
    "wu2023": ("num_samples=3", "num_tokens=2", "dim=4", "width=6"),
    "song2024": ("num_samples=3", "num_tokens=2", "dim=4", "num_heads=1", "key_dim=2"),
    "arda2026": ("num_samples=3", "num_tokens=2", "dim=4", "num_heads=4"),
    "qin2025": ("num_samples=2", "num_tokens=2", "dim=4", "width=5", "key_dim=2"),
    "icl2025": ("num_samples=3", "dim=2", "context=3", "num_heads=2"),
}


@pytest.mark.parametrize("paper", [
    pytest.param(paper, marks=[] if paper == "arda2026" else [pytest.mark.slow]) for paper in SHORT
])  # fmt: skip
def test_a_short_run_of_every_paper_becomes_a_page(tmp_path, capsys, paper):
    given = [word for value in SHORT[paper] for word in ("--set", value)]
    run, out = str(tmp_path / "run"), tmp_path / "page.html"
    probes = [] if paper == "arda2026" else ["--probes", "all"]
    assert main(["train", paper, *given, "--steps", "2", *probes, "--out", run]) == 0
    assert main(["report", run, "--out", str(out)]) == 0, capsys.readouterr().err
    assert "in 2 steps" in out.read_text()
    assert out.stat().st_size < SMALL


def test_several_runs_are_laid_over_each_other(tmp_path):
    for width in (8, 16):
        sh.train(sh.setup("wu2023", **TINY | {"width": width}), steps=5).save(
            tmp_path / f"w{width}"
        )
    out = tmp_path / "two.html"
    folders = [str(tmp_path / f"w{width}") for width in (8, 16)]
    assert main(["report", *folders, "--out", str(out)]) == 0
    text = out.read_text()
    side = text[text.index("Side by side</h3>") : text.index("<h2 id")]
    assert re.findall(r"<button.*?<span>(\w+)</span>", side) == ["w8", "w16"]
    assert re.findall(r'data-name="width"><span>(\d+)', side.replace(' class="number"', "")) == [
        "8", "16",
    ]  # fmt: skip
    assert len(text) < SMALL


def test_plotly_comes_only_when_it_is_asked_for():
    section = Section("s", panels=(Panel("p", "x", "y", (line("a", [0, 1], [1, 2]),)),))
    sizes = [len(page.render("t", "", [section], command="", citations=[], interactive=on))
             for on in (False, True)]  # fmt: skip
    assert sizes[0] < 60_000
    assert sizes[1] > 3_000_000


def test_the_index_keeps_every_figure_made(tmp_path, capsys):
    toy = str(Path(__file__).parent / "toy_paper.py")
    figure = Figure(
        "older", "An older figure", "c", (Panel("p", "x", "y", (line("a", [0], [1]),)),)
    )
    (tmp_path / "older.json").write_text(json.dumps(plain(figure._asdict() | {"paper": "doe2024"})))
    assert main(["reproduce", f"{toy}.width", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "index.html").read_text()
    assert "An older figure" in text
    assert "Loss by width" in text
    assert 'href="./width.pdf"' in text
    capsys.readouterr()


# -------------------------------------------------------------------------------- in a browser


@pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")), reason="no chromium"
)
@pytest.mark.parametrize("scripts", [True, False])
def test_a_page_tells_its_findings_with_and_without_scripts(tmp_path, scripts):
    from selenium import webdriver

    film = (("maps", tuple(Image(f"step {k}", np.eye(2)) for k in range(5))),)
    section = Section(
        "A card", finding="The risk fell.", panels=(Panel("p", "x", "y", (
            line("a", [0, 1], [1, 2]), line("b", [0, 1], [2, 1]))),),
        tables=(("numbers", ("n",), (("42",),)),), slides=film,
    )  # fmt: skip
    path = tmp_path / "p.html"
    path.write_text(page.render("T", "", [section], command="c", citations=[]))
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-sync",
                 "--no-first-run", "--disable-background-networking",
                 f"--user-data-dir={tmp_path / 'profile'}"):  # fmt: skip
        options.add_argument(flag)
    if not scripts:
        options.add_experimental_option(
            "prefs", {"profile.managed_default_content_settings.javascript": 2}
        )
    browser = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        browser.get(path.as_uri())
        assert "The risk fell." in browser.find_element("css selector", ".findings").text
        assert "42" in browser.find_element("css selector", "table").text
        assert len(browser.find_elements("css selector", ".chart path.line")) == 2 + 2  # and legend
        frames = browser.find_elements("css selector", ".film .frame")
        seen = [frame.is_displayed() for frame in frames]
        assert seen == ([True] + [False] * 4 if scripts else [True, False, True, False, True])
        assert len(browser.find_elements("css selector", ".tip")) == int(scripts)
    finally:
        browser.quit()
