"""A run as one file for other programs: CSV or Parquet of a table, JSON of everything."""

import io

import pyarrow as pa
import pyarrow.parquet as pq

from workbench.spec.record import TABLE_COLUMNS
from workbench.store.importers import EXPORT_FORM, MANIFEST_KEY
from workbench.store.reader import read_table
from workbench.store.run_folder import RunFolder
from workbench.store.strict_json import to_json


def csv_bytes(run: RunFolder, *, table: str) -> bytes:
    """UTF-8 CSV with a header; a missing value is an empty field."""
    return read_table(run, table).frame.to_csv(index=False).encode("utf-8")


def json_bytes(run: RunFolder) -> bytes:
    """Strict JSON with the manifest and every table; `import` takes it back."""
    tables = {name: read_table(run, name).frame for name in ("cells", *TABLE_COLUMNS)}
    return to_json({"form": EXPORT_FORM, "manifest": run.manifest(), **tables}).encode("utf-8")


def parquet_bytes(run: RunFolder, *, table: str) -> bytes:
    """One Parquet file with the manifest in its metadata; `import` takes back that of `cells`."""
    rows = pa.Table.from_pandas(read_table(run, table).frame, preserve_index=False)
    metadata = {**(rows.schema.metadata or {}), MANIFEST_KEY: to_json(run.manifest()).encode("utf-8")}
    sink = io.BytesIO()
    pq.write_table(rows.replace_schema_metadata(metadata), sink, compression="zstd")
    return sink.getvalue()
