"""Gathers a folder of published measurements, one CSV a table, into the Parquet file that the simulator carries.

``python -m workbench.run.published_tables FOLDER`` writes ``workbench/simulate/data/published.parquet``: the rows of
every CSV, unaltered, under a column ``table`` with the file's name. NOTICE says whose they are.
"""

import os
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from workbench.simulate.published import PUBLISHED


def gather(folder: Path) -> pa.Table:
    """All CSV files of ``folder`` as one table; a column that one of them lacks is null there."""
    files = sorted(folder.glob("*.csv"))
    if not files:
        raise ValueError(f"{folder}: no CSV files to gather")
    return pa.concat_tables([_table(path) for path in files], promote_options="permissive")


def write(table: pa.Table, path: Path) -> None:
    """Whole or not at all."""
    part = path.with_name(path.name + ".part")
    pq.write_table(table, part, compression="zstd", compression_level=19)
    os.replace(part, path)


def _table(path: Path) -> pa.Table:
    frame = pd.read_csv(path, low_memory=False)
    for name in frame.columns:
        values = frame[name]
        if values.dtype.kind == "f" and values.notna().any() and (values.dropna() % 1 == 0).all():
            frame[name] = values.astype("Int64")
    frame.insert(0, "table", path.stem)
    return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)


if __name__ == "__main__":
    write(gather(Path(sys.argv[1])), PUBLISHED)
    print(f"wrote {PUBLISHED}")
