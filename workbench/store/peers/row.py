"""One imported result as a record, with its conditions in the shape of a planned cell, so that `compare` pairs it."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.spec.catalog_files import load_hardware, names
from workbench.spec.record import Outcome, Record
from workbench.store.strict_json import to_json

TELLABLE = (
    "model",
    "hardware",
    "precision",
    "kernel",
    "kernel_version",
    "num_gpus",
    "nodes",
    "tp",
    "ep",
    "dp",
    "phase",
)
"""What a file may leave open and a person can tell."""
FORM_FACTORS, OTHER_FORM_FACTORS = ("sxm", "nvl72"), ("pcie", "nvl", "cpu")
"""What the catalog's names say besides the chip, and what makes a board another part than the catalog's."""
WHOLE = ("num_gpus", "nodes", "tp", "ep", "dp")

Told = Mapping[str, str]


@dataclass(frozen=True)
class Figures:
    """What was measured, all in the units of Record, and the samples in microseconds if the file has them."""

    record: Mapping[str, Any]
    samples_us: Sequence[float] = ()
    status: str = "ok"
    reason: str | None = None


def outcome(conditions: Mapping[str, Any], figures: Figures, *, told: Told, more: Mapping[str, Any]) -> Outcome:
    """``conditions`` are columns of Record that say what was run, ``more`` what no column holds, such as lengths.

    What the file says goes before what was told. Both make the id, so the same setting of two files is the same cell.
    """
    columns = _told(told) | {name: value for name, value in conditions.items() if value is not None}
    hardware, device = _part(columns.get("hardware"))
    columns |= {"hardware": hardware, "device": device}
    planned = _planned(columns, more)
    cell_id = hashlib.sha256(json.dumps(planned, sort_keys=True).encode("utf-8")).hexdigest()[:12]
    record = Record(
        **columns | dict(figures.record),
        cell_id=cell_id,
        engine="measure",
        status=figures.status,
        reason=figures.reason,
        cell_json=to_json(planned),
    )
    rows = [
        {"cell_id": cell_id, "rank": 0, "iteration": place, "repeat": 0, "us": us}
        for place, us in enumerate(figures.samples_us)
    ]
    return Outcome(record=record, tables={"samples": rows} if rows else {})


def number(value: Any) -> float | None:
    """A finite number, also out of a text; None for all else."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) and not isinstance(value, bool) else None


def whole(value: Any) -> int | None:
    """A whole number, also out of a text; None for all else."""
    found = number(value)
    return int(found) if found is not None and found == int(found) else None


def scaled(value: Any, factor: float) -> float | None:
    found = number(value)
    return None if found is None else found * factor


def _told(told: Told) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, text in told.items():
        if name not in TELLABLE:
            raise ValueError(f"--set {name}={text}: an import can be told {', '.join(TELLABLE)}")
        columns[name] = whole(text) if name in WHOLE else text
        if columns[name] is None:
            raise ValueError(f"--set {name}={text}: not a whole number")
    return columns


def _part(name: Any) -> tuple[str | None, str | None]:
    """The catalog's name of a GPU and its kind of device; a part that the catalog lacks keeps its own name."""
    if name is None:
        return None, None
    words = "".join(letter if letter.isalnum() else " " for letter in str(name).lower()).split()
    for known in names("hardware"):
        chip = [word for word in known.split("-") if word not in FORM_FACTORS]
        if str(name).lower() == known or (set(chip) <= set(words) and not set(words) & set(OTHER_FORM_FACTORS)):
            return known, load_hardware(known).device
    return str(name), None


def _planned(columns: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The dotted paths that a planned cell has for these columns."""
    taken = (
        "model",
        "hardware",
        "nodes",
        "num_gpus",
        "tp",
        "ep",
        "dp",
        "precision",
        "phase",
        "scope",
        "bytes_per_rank",
    )
    rest = {name: value for name, value in columns.items() if name not in (*taken, "device")}
    return {
        **rest,
        "model": {"name": columns.get("model")},
        "scope": {"kind": columns.get("scope"), "bytes_per_rank": columns.get("bytes_per_rank")},
        "cluster": {name: columns.get(name) for name in ("hardware", "nodes", "num_gpus")},
        "parallel": {name: columns.get(name) for name in ("tp", "ep", "dp")},
        "precision": {"name": columns.get("precision")},
        "workload": {"phase": columns.get("phase"), **more},
    }
