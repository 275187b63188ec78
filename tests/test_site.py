"""The site: its examples run, its pages hang together, and nothing on them comes from elsewhere."""

import doctest
import html.parser
import importlib.util
import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

import shoal
from shoal.cli import app
from shoal.papers import PAPERS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SCRIPTS = sorted((DOCS / "gallery").glob("*.py"))
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.py"))


def module(name):
    """A module of the site's own code."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "_site" / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


# ------------------------------------------------------------------------------------------- quick


def test_importing_shoal_needs_no_sphinx():
    code = "import sys, shoal, shoal.cli; print([m for m in sys.modules if 'sphinx' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_versions_agree():
    assert f"version: {shoal.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {shoal.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert (ROOT / "src" / "shoal" / "py.typed").is_file()


def test_every_name_of_the_door_has_an_example_and_a_place(monkeypatch, tmp_path):
    reference = module("reference")
    listed = " ".join(reference.SECTIONS.values()).split()
    assert sorted(listed) == sorted(shoal._DOOR)
    examples = reference.examples()
    for name in listed:
        assert name in examples or ">>>" in (getattr(shoal, name).__doc__ or ""), name


def test_examples_of_the_door_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testfile(
        str(DOCS / "_site" / "door_examples.md"), module_relative=False,
        optionflags=doctest.NORMALIZE_WHITESPACE,
    )  # fmt: skip
    assert tried > 50
    assert failed == 0


def test_scripts_are_cut_into_cells():
    cells = module("cells").cells
    made = cells("# %% [markdown]\n# # Title\n#\n# Words.\n# %%\nx = 1\n\n# %%\ny = 2\n")
    assert [tuple(cell) for cell in made] == [
        (True, "# Title\n\nWords."), (False, "x = 1"), (False, "y = 2"),
    ]  # fmt: skip


def test_the_gallery_asks_questions():
    assert len(SCRIPTS) >= 20
    groups = {name.split("_")[0] for name in (script.stem for script in SCRIPTS)}
    source = (DOCS / "_site" / "pages.py").read_text()
    assert all(f'"{group}": ' in source for group in groups)  # else the page of all leaves it out
    for script in SCRIPTS:
        text = script.read_text()
        assert text.split("\n")[0].endswith("?"), script.name
        code = text.split('"""', 2)[2].strip().splitlines()
        assert len([line for line in code if line and not line.startswith("import")]) <= 24, (
            script.name
        )


def test_there_are_four_notebooks_without_outputs():
    assert {path.stem for path in NOTEBOOKS} == {
        "first_certificate",
        "own_model",
        "the_trap",
        "widths",
    }
    assert not list(ROOT.glob("docs/notebooks/*.ipynb"))


# -------------------------------------------------------------------------------------------- slow


@pytest.mark.slow
@pytest.mark.parametrize("script", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_run(script, tmp_path, monkeypatch):
    import matplotlib

    monkeypatch.chdir(tmp_path)
    with matplotlib.rc_context({"backend": "agg"}):
        runpy.run_path(str(script), run_name="__main__")
        matplotlib.pyplot.close("all")


LOADED = {("link", "href"), *((tag, "src") for tag in ("script", "img", "iframe", "source"))}


class Links(html.parser.HTMLParser):
    """Addresses that a page follows by itself, addresses that a reader may click, and anchors."""

    def __init__(self, text):
        super().__init__()
        self.loaded, self.clicked, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if "id" in found:
            self.anchors.add(found["id"])
        for name, value in attrs:
            if (tag, name) in LOADED and value:
                self.loaded.append(value)
            if (tag, name) == ("a", "href") and value:
                self.clicked.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built with warnings as errors; scripts that were run before are not run again."""
    pytest.importorskip("sphinx", reason="sphinx is not installed (extra docs)")
    pytest.importorskip("myst_parser", reason="myst-parser is not installed (extra docs)")
    pytest.importorskip("furo", reason="furo is not installed (extra docs)")
    folder = tmp_path_factory.mktemp("site")
    words = ["-W", "--keep-going", "-q", "-b", "html", "-d", str(folder / "trees"), str(DOCS)]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, str(folder / "html")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = sorted((folder / "html").rglob("*.html"))
    assert len(pages) > 60
    return {page: Links(page.read_text()) for page in pages}


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site):
    for page, links in site.items():
        for address in links.loaded:
            assert not re.match(r"(https?:)?//", address), f"{page.name}: {address}"
    for style in next(iter(site)).parents[0].rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", style.read_text()), style.name


@pytest.mark.slow
def test_links_within_the_site_lead_somewhere(site):
    for page, links in site.items():
        for address in (*links.clicked, *links.loaded):
            where = urlparse(address)
            if where.scheme or address.startswith("//"):
                continue
            target = (page.parent / unquote(where.path)).resolve() if where.path else page
            assert target.exists(), f"{page.name}: {address}"
            if where.fragment and target in site:
                known = site[target].anchors
                assert unquote(where.fragment) in known, f"{page.name}: {address}"


@pytest.mark.slow
def test_the_site_has_all_papers_commands_and_pictures(site):
    by_name = {"/".join(page.parts[-2:]): page for page in site}
    for key in PAPERS:
        text = by_name[f"papers/{key}.html"].read_text()
        for title in (
            "The model",
            "What the paper says",
            "What is proved",
            "What came out",
            "What is open",
        ):
            assert title in text, f"{key}: {title}"
        assert text.count("<img") >= 2
    commands = by_name["reference/commands.html"].read_text()
    for name in app:
        if not name.startswith("-"):
            assert f"shoal {name}" in commands
    for script in SCRIPTS:
        assert "<img" in by_name[f"gallery/{script.stem}.html"].read_text()
    root = by_name["reference/commands.html"].parents[1]
    for script in NOTEBOOKS:
        made = json.loads((root / "notebooks" / f"{script.stem}.ipynb").read_text())
        assert not any(cell.get("outputs") for cell in made["cells"])


@pytest.fixture(scope="module")
def phone():
    """A real browser as narrow as a telephone."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("no chromium and chromedriver on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"):
        options.add_argument(flag)
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    made.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield made
    made.quit()


@pytest.mark.slow
def test_pages_fit_a_telephone_and_ask_for_nothing(site, phone):
    asked = "return performance.getEntriesByType('resource').map(entry => entry.name)"
    for page in site:
        phone.get(page.as_uri())
        width = phone.execute_script("return document.documentElement.scrollWidth")
        assert width <= 390, f"{page.name} is {width} pixels wide"
        outside = [
            name for name in phone.execute_script(asked) if not name.startswith(("file:", "data:"))
        ]
        assert not outside, f"{page.name}: {outside}"


@pytest.mark.slow
def test_the_search_works_without_a_network(site, phone):
    from selenium.webdriver.support.ui import WebDriverWait

    root = next(page for page in site if page.name == "search.html")
    phone.get(f"{root.as_uri()}?q=plateau")
    results = "return [...document.querySelectorAll('#search-results li a')].map(a => a.text)"
    WebDriverWait(phone, 1800).until(lambda browser: browser.execute_script(results))
    assert any("icl2025" in title for title in phone.execute_script(results))
