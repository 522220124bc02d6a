"""Files of the catalog and the suites, in a checkout and in an installed wheel.

A name is looked up among the files that are there, so no name of a scenario ever becomes a path.
"""

from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from workbench.spec.calibration import measured_ceilings
from workbench.spec.cluster import ClusterRef, Hardware
from workbench.spec.errors import Problem, SpecError, refuse, unknown_name
from workbench.spec.faults import faults_of
from workbench.spec.model import Model
from workbench.spec.yaml_source import Source, dotted, load_yaml

KINDS = ("models", "hardware", "clusters", "suites")
_PACKAGE = Path(__file__).resolve().parents[1]
_COMMENT = "#"
Schema = TypeVar("Schema", bound=BaseModel)


def scenarios_dir() -> Path:
    """The folder of suites: inside the installed package, or beside it in a checkout."""
    installed = _PACKAGE / "_scenarios"
    return installed if installed.is_dir() else _PACKAGE.parent / "scenarios"


def catalog_dir() -> Path:
    """The folder that holds ``models``, ``hardware`` and ``clusters``."""
    return scenarios_dir() / "catalog"


def reference_dir() -> Path:
    """The results that come with the workbench: inside the installed package, or beside it in a checkout."""
    installed = _PACKAGE / "_reference"
    return installed if installed.is_dir() else _PACKAGE.parent / "results" / "reference"


@cache
def names(kind: str) -> tuple[str, ...]:
    """Names of one of ``models``, ``hardware``, ``clusters``, ``suites``, sorted."""
    return tuple(sorted(_files(kind)))


def describe(kind: str, name: str) -> str:
    """The first sentence of the comment that opens a catalog file or a suite."""
    lines = _file(kind, name).read_text(encoding="utf-8").splitlines()
    opening = takewhile(lambda line: line.startswith(_COMMENT), lines)
    return " ".join(line.removeprefix(_COMMENT).strip() for line in opening).partition(". ")[0].removesuffix(".")


def suite_path(name: str) -> Path:
    """The file of a suite by its name."""
    return _file("suites", name)


@cache
def load_model(name: str) -> Model:
    """A model of the catalog."""
    return _load("models", name, Model)


@cache
def load_hardware(name: str) -> Hardware:
    """A part of the catalog; ``cpu`` is this machine, with the ceilings that ``calibrate`` measured if it has."""
    part = _load("hardware", name, Hardware)
    return part.model_copy(update=measured_ceilings(name)) if part.device == "cpu" else part


@cache
def load_cluster_ref(name: str) -> ClusterRef:
    """A cluster of the catalog, its hardware still a name."""
    return _load("clusters", name, ClusterRef)


def _files(kind: str) -> dict[str, Path]:
    folder = scenarios_dir() if kind == "suites" else catalog_dir() / kind
    return {path.stem: path for path in folder.glob("*.yaml")}


def _file(kind: str, name: str) -> Path:
    files = _files(kind)
    if name not in files:
        raise refuse(unknown_name(kind.removesuffix("s"), name, files), value=name)
    return files[name]


def _load(kind: str, name: str, schema: type[Schema]) -> Schema:
    path = _file(kind, name)
    source: Source = load_yaml(path.read_text(encoding="utf-8"), path.name)
    try:
        return schema.model_validate(source.data)
    except ValidationError as error:
        faults = faults_of(error, source.data, schema)
        raise SpecError(
            Problem(path.name, source.line(fault.path), dotted(fault.path), fault.value, fault.message)
            for fault in faults
        ) from None
