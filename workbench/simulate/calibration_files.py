"""Where constants and records lie: those that come with the package, and those that ``calibrate`` measured here.

A calibration of this machine is a folder a part, ``<folder>/<hardware>/``, with ``constants.json``, ``records.parquet``
and ``ceilings.json``, any of which may be missing; what it holds stands before the package's for that part.
"""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

PACKAGED = Path(__file__).with_name("data")
CONSTANTS, RECORDS, CEILINGS = "constants.json", "records.parquet", "ceilings.json"
FOLDER = "MOE_WORKBENCH_CALIBRATION"


def calibration_dir() -> Path:
    """The folder of this machine's calibrations: what MOE_WORKBENCH_CALIBRATION names, or one in the home folder."""
    named = os.environ.get(FOLDER)
    return Path(named) if named else Path.home() / ".moe-workbench" / "calibration"


def calibrated_parts() -> tuple[str, ...]:
    """Hardware names that a calibration of this machine exists for."""
    folder = calibration_dir()
    return tuple(sorted(path.name for path in folder.iterdir() if path.is_dir())) if folder.is_dir() else ()


def read_constants() -> dict[str, Any]:
    """``families`` (calibrated here first, then the package's) and ``bands`` by name."""
    return _constants(str(calibration_dir()))


@cache
def _constants(folder: str) -> dict[str, Any]:
    answer = json.loads((PACKAGED / CONSTANTS).read_text(encoding="utf-8"))
    own: list[dict[str, Any]] = []
    for part in calibrated_parts():
        path = Path(folder) / part / CONSTANTS
        if path.is_file():
            own += json.loads(path.read_text(encoding="utf-8"))["families"]
    return answer | {"families": own + answer["families"]}


def read_records() -> pd.DataFrame:
    """Records of this product: the package's and those measured here, as ``workbench.run.own_records`` makes them."""
    return _records(str(calibration_dir()))


@cache
def _records(folder: str) -> pd.DataFrame:
    paths = [Path(folder) / part / RECORDS for part in calibrated_parts()]
    frames = [pd.read_parquet(path) for path in [*paths, PACKAGED / RECORDS] if path.is_file()]
    return pd.concat(frames, ignore_index=True)


def write_whole(path: Path, data: bytes) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    os.replace(part, path)
