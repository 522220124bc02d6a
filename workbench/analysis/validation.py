"""The table that ``validate`` writes: single held-out predictions, read back and summed up."""

import os
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from workbench.spec.validation import POINT_COLUMNS, error_figures

_ARROW = {str: pa.string(), int: pa.int64(), float: pa.float64()}
SCHEMA = pa.schema([(name, _ARROW[kind]) for name, kind in POINT_COLUMNS.items()])
GROUPS = ("section", "method", "split", "hardware", "dtype")


def write_points(points: list[dict[str, Any]], path: Path) -> None:
    """Single predictions by POINT_COLUMNS as one Parquet file, whole or not at all. Raises ValueError when the folder
    cannot be written."""
    frame = pd.DataFrame(points, columns=list(POINT_COLUMNS))
    table = pa.Table.from_pandas(frame, schema=SCHEMA, preserve_index=False)
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, part, compression="zstd")
        os.replace(part, path)
    except OSError as fault:
        raise ValueError(f"{path}: cannot be written ({fault.strerror}); name another file with --output") from None


def read_points(path: Path) -> pd.DataFrame:
    """The table as a frame. Raises ValueError for a file that is not one."""
    try:
        frame = pq.read_table(path).to_pandas()
    except (OSError, pa.ArrowInvalid) as fault:
        raise ValueError(f"{path}: cannot be read as a validation table ({fault})") from None
    lacking = [name for name in POINT_COLUMNS if name not in frame]
    if lacking:
        raise ValueError(f"{path}: not a validation table, it lacks {', '.join(lacking)}")
    return frame


def summarise(points: pd.DataFrame, by: tuple[str, ...] = GROUPS) -> pd.DataFrame:
    """``error_figures`` of every group, one row each."""
    rows = []
    for key, part in points.groupby(list(by), dropna=False):
        figures = error_figures(
            part["measured_us"], part["predicted_us"], low=part["band_low_us"], high=part["band_high_us"]
        )
        rows.append(dict(zip(by, key, strict=True)) | figures)
    return pd.DataFrame(rows)
