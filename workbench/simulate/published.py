"""Measurements that others published, as the frames that come with this package."""

from functools import cache
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

PUBLISHED = Path(__file__).with_name("data") / "published.parquet"
"""Written by ``python -m workbench.run.published_tables``."""


@cache
def published(table: str) -> pd.DataFrame:
    """Rows of one published table: ``moe_layer``, ``moe_wide_ep``, ``moe_stages``, ``a2a_deepep``,
    ``a2a_moe_backends``, ``nccl_intranode``, ``comm_published`` or ``e2e_serving``.

    Columns keep their publisher's names and units; those that the table lacks are left out. The frame is shared:
    copy it before writing to it. Raises ValueError for a table that there is not.
    """
    frame = pq.read_table(PUBLISHED, filters=[("table", "=", table)]).to_pandas()
    if frame.empty:
        raise ValueError(f"no published table is called {table}")
    return frame.drop(columns="table").dropna(axis=1, how="all")
