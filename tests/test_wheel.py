"""The wheel: installed into an environment of its own, shoal works far from the repository."""

import json
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*words, **more):
    done = subprocess.run(words, capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built by pip as for a release."""
    out = tmp_path_factory.mktemp("dist")
    words = ["wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(ROOT)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False
    )
    if "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("pip finds no hatchling to build with (no network)")
    assert done.returncode == 0, done.stderr
    (found,) = out.glob("shoal-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """An environment with the wheel; its dependencies are those of this one, without this shoal."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps", wheel)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    # a path that a .pth file adds has no .pth files of its own read: no editable shoal comes along
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    return folder / "bin"


@pytest.mark.slow
def test_the_wheel_holds_what_is_not_code(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "shoal/py.typed" in names
    kept = (path for path in (ROOT / "src").rglob("*") if path.is_file())
    missing = {
        where
        for path in kept
        if "__pycache__" not in path.parts
        and (where := path.relative_to(ROOT / "src").as_posix()) not in names
    }
    assert missing == set()


@pytest.mark.slow
def test_the_tour_runs_from_a_wheel_in_another_folder(installed, tmp_path):
    where = "import shoal; print(shoal.__file__)"
    found = Path(run(installed / "python", "-c", where, cwd=tmp_path).strip())
    assert found.is_relative_to(installed.parent)
    told = json.loads(run(installed / "shoal", "tour", "--json", cwd=tmp_path))
    assert told
    assert "icl2025" in (tmp_path / "tour.html").read_text()


@pytest.mark.slow
def test_papers_and_the_laboratory_are_there(installed, tmp_path):
    assert "icl2025" in run(installed / "shoal", "papers", cwd=tmp_path)
    assert "sliders" in run(installed / "shoal", "lab", "--help", cwd=tmp_path)
    words = ("train", "icl2025", "--steps", "5", "--out", "r1")
    run(installed / "shoal", *words, cwd=tmp_path)
    assert (tmp_path / "r1" / "trajectory.parquet").is_file()
