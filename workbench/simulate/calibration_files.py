"""Constants and records: those that come with the package, and before them those that ``calibrate`` measured here."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.spec.calibration import CEILINGS, CONSTANTS, RECORDS, calibrated_parts, calibration_dir

__all__ = ["CEILINGS", "CONSTANTS", "PACKAGED", "RECORDS", "calibration_dir", "read_constants", "read_records"]

PACKAGED = Path(__file__).with_name("data")


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
