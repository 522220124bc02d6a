"""The wheel in an empty folder, and beside Hugging Face's package ``kernels``, whose import name our folder shares.

These tests fetch the build backend and that package from the package index.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

import pytest

from workbench.spec.catalog import names

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (
    "workbench",
    "kernels",
    "dashboard",
    "scenarios",
    "results/reference",
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "NOTICE",
)
THEIRS = "kernels==0.17.2"
TRANSFORMERS = "transformers==5.24.0"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def space():
    with tempfile.TemporaryDirectory(prefix="moe-workbench-wheel-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def wheel(space):
    source = space / "source"
    source.mkdir()
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.exists():
            shutil.copy(path, source / name)
    pip("wheel", "--no-deps", "--wheel-dir", space / "wheels", source)
    (built,) = (space / "wheels").glob("moe_workbench-*.whl")
    return built


@pytest.fixture(scope="module")
def target(space, wheel):
    pip("install", "--no-deps", "--no-compile", "--target", space / "target", wheel)
    return space / "target"


@pytest.fixture(scope="module")
def peers(space):
    """Folders of Hugging Face's ``kernels`` alone, and of all else that it and transformers need and we lack."""
    pip("install", "--no-compile", "--prefix", space / "peers", THEIRS, TRANSFORMERS)
    (space / "theirs").mkdir()
    for path in Path(site(space / "peers")).glob("kernels*"):
        path.rename(space / "theirs" / path.name)
    return space / "theirs", Path(site(space / "peers"))


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]


def site(prefix):
    return sysconfig.get_path("purelib", vars={"base": str(prefix), "platbase": str(prefix)})


def python(*arguments, path, cwd):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], env=environment, cwd=cwd, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_wheel_holds_suites_catalog_and_no_kernels_init(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    for kind in ("models", "hardware", "clusters"):
        assert {f"workbench/_scenarios/catalog/{kind}/{name}.yaml" for name in names(kind)} <= held
    assert {f"workbench/_scenarios/{name}.yaml" for name in names("suites")} <= held
    assert "kernels/__init__.py" not in held
    assert "kernels/formats/__init__.py" in held
    code = {str(path.relative_to(ROOT)) for top in ("workbench", "kernels", "dashboard") for path in modules(top)}
    assert code <= held
    data = ROOT / "workbench" / "simulate" / "data"
    assert {str(path.relative_to(ROOT)) for path in data.iterdir()} <= held
    reference = ROOT / "results" / "reference"
    shipped = {path.relative_to(reference) for path in reference.rglob("*") if path.is_file()}
    assert {f"workbench/_reference/{path}" for path in shipped} <= held
    assert not any(name.startswith(("tests/", "scenarios/", "results/")) for name in held)


def modules(top):
    return [path for path in (ROOT / top).rglob("*.py") if "__pycache__" not in path.parts]


def test_installed_wheel_works_in_an_empty_folder(target, tmp_path):
    where = python("-c", "import workbench; print(workbench.__file__)", path=[target], cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(target)
    command = target / "bin" / "moe-workbench"
    listed = json.loads(python(command, "scenarios", "--format", "json", path=[target], cwd=tmp_path))
    assert [row["name"] for row in listed["suites"]] == list(names("suites"))
    planned = json.loads(python(command, "plan", "quickstart", "--format", "json", path=[target], cwd=tmp_path))
    assert planned["count"] == len(planned["cells"]) > 0
    assert list(tmp_path.iterdir()) == []


def test_name_hazard_no_file_of_theirs_is_ours(wheel, peers):
    theirs = {path.relative_to(peers[0]) for path in (peers[0] / "kernels").rglob("*") if path.is_file()}
    ours = {Path(name) for name in zipfile.ZipFile(wheel).namelist() if name.startswith("kernels/")}
    assert theirs
    assert ours
    assert not theirs & ours


BOTH = """
import kernels
from kernels import get_kernel
import kernels.formats, kernels.routing, kernels.moe
import kernels.layer
import torch
q = kernels.formats.FORMATS["mxfp8"].encode(torch.ones(4, 64))
assert kernels.formats.FORMATS["mxfp8"].decode(q).shape == (4, 64)
print(kernels.__file__, kernels.formats.__file__, callable(get_kernel))
"""


@pytest.mark.parametrize("order", ["theirs first", "ours first"])
def test_name_hazard_both_in_one_folder(order, wheel, peers, space, tmp_path):
    prefix = space / order.replace(" ", "-")
    steps = [THEIRS, wheel] if order == "theirs first" else [wheel, THEIRS]
    for step in steps:
        pip("install", "--no-deps", "--no-compile", "--ignore-installed", "--prefix", prefix, step)
    told = python("-c", BOTH, path=[site(prefix), peers[1]], cwd=tmp_path).split()
    assert told == [f"{site(prefix)}/kernels/__init__.py", f"{site(prefix)}/kernels/formats/__init__.py", "True"]


ALONE = """
import importlib.metadata, transformers
from transformers.utils.import_utils import is_kernels_available
import transformers.integrations.hub_kernels
from transformers.models.mixtral.modeling_mixtral import MixtralForCausalLM
import kernels.formats
print(is_kernels_available(), kernels.formats.__file__)
"""


def test_name_hazard_transformers_with_ours_alone(target, peers, tmp_path):
    """transformers takes a folder ``kernels`` for Hugging Face's and asks its distribution for a version."""
    told = python("-c", ALONE, path=[target, peers[1]], cwd=tmp_path).split()
    assert told == ["False", f"{target}/kernels/formats/__init__.py"]
