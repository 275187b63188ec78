"""What is installed with shoal: every package has an exact version and a licence in the files."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("licences", ROOT / "docs/_site/licences.py")
licences = importlib.util.module_from_spec(spec)
spec.loader.exec_module(licences)


def constraints():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {licences.normal(name): version for name, version in pairs}


def public(version):
    """A version without the mark of a build, such as torch's ``+cpu``."""
    return version.partition("+")[0]


@pytest.mark.parametrize("extra", ["", *licences.extras()])
def test_whatever_an_extra_brings_has_its_version_in_the_constraints(extra):
    known = constraints()
    found = {name: public(one.version) for name, one in licences.needed(extra).items()}
    assert found.items() <= known.items()


def test_the_licences_are_those_that_packages_declare():
    told = licences.PAGE.read_text()
    assert told.startswith(licences.HEAD)
    assert set(licences.rows()) <= set(told.splitlines())  # not every extra may be installed
    listed = set(re.findall(r"^\| ([a-z0-9-]+) \|", told, re.MULTILINE)) - {"package"}
    assert listed == set(constraints()) - {"hatchling"}  # which builds, and is not installed


@pytest.mark.slow
def test_a_fresh_environment_has_the_versions_of_the_constraints(tmp_path):
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    words += ["-c", str(ROOT / "constraints.txt"), f"{ROOT}[{','.join(licences.extras())}]"]
    done = subprocess.run([str(python), *words], capture_output=True, text=True, check=False)
    if done.returncode and re.search("connection|Temporary failure|timed out", done.stderr, re.I):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    frozen = subprocess.run(
        [str(python), "-m", "pip", "freeze", "--all"], capture_output=True, text=True, check=True
    ).stdout
    pairs = [line.split("==") for line in frozen.splitlines() if "==" in line]
    found = {licences.normal(name): public(version) for name, version in pairs}
    del found["pip"]
    assert found == {k: v for k, v in constraints().items() if k != "hatchling"}
