"""Where ``calibrate`` leaves what it measured on this machine, and the ceilings that the catalog takes from there.

A calibration is a folder a part, ``<folder>/<hardware>/``, with ``constants.json``, ``records.parquet`` and
``ceilings.json``; what it holds stands before what comes with the package.
"""

import json
import os
from pathlib import Path
from typing import Any

from workbench.spec.errors import refuse

FOLDER = "MOE_WORKBENCH_CALIBRATION"
CONSTANTS, RECORDS, CEILINGS = "constants.json", "records.parquet", "ceilings.json"
CEILING_FIELDS = ("bf16_dense_tflops", "memory_tb_per_s", "launch_us")


def calibration_dir() -> Path:
    """The folder of this machine's calibrations: what MOE_WORKBENCH_CALIBRATION names, or one in the home folder."""
    named = os.environ.get(FOLDER)
    return Path(named or os.path.expanduser("~/.moe-workbench/calibration"))


def calibrated_parts() -> tuple[str, ...]:
    """Hardware names that this machine has a calibration of."""
    folder = calibration_dir()
    return tuple(sorted(path.name for path in folder.iterdir() if path.is_dir())) if folder.is_dir() else ()


def measured_ceilings(part: str) -> dict[str, Any]:
    """Fields of Hardware that were measured here for ``part``; empty without a calibration.

    Raises SpecError for a file that does not hold positive numbers.
    """
    path = calibration_dir() / part / CEILINGS
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        values = {name: float(found[name]) for name in CEILING_FIELDS}
    except (ValueError, KeyError, TypeError):
        raise refuse(f"{path} is damaged; run moe-workbench calibrate again, or delete it", value=part) from None
    if min(values.values()) <= 0:
        raise refuse(f"{path} holds figures that are not above 0; run moe-workbench calibrate again", value=part)
    return values
