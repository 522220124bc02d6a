"""Measured records of this product as a compact table that the simulator interpolates and is compared with.

``moe-workbench calibrate --records RUN`` writes it. A row is a layer whose compute ran on one GPU; its columns are
those of the published layers (``workbench.simulate.published_moe``), and the planned cell whole.
"""

import io
import json
from typing import Any

import pandas as pd

from workbench.spec.scenario import Cell

SCOPES = ("layer", "layer_no_router")


def own_records(cells: pd.DataFrame, loads: pd.DataFrame) -> pd.DataFrame:
    """Rows of the measured cells of one run that a simulator can learn from or be checked against.

    Left out: cells that are not ``ok``, whose ranks exchanged something, whose experts came through a cache, or whose
    formats a GPU emulated, for then the time says nothing of a kernel. A processor emulates every narrow format, so
    there that is what a format takes.
    """
    emulated = cells["math_path"].eq("emulated") & cells["hardware"].ne("cpu")
    chosen = cells[
        cells["status"].eq("ok") & cells["engine"].eq("measure") & cells["scope"].isin(SCOPES)
        & cells["strategy"].eq("none") & ~emulated & cells["hit_rate"].isna()
    ]  # fmt: skip
    pairs = loads[loads["kind"].eq("rank")].set_index(["cell_id", "index"])["tokens"]
    return pd.DataFrame([_row(record, pairs) for record in chosen.to_dict("records")])


def _row(record: dict[str, Any], pairs: pd.Series) -> dict[str, Any]:
    cell = Cell.model_validate(json.loads(record["cell_json"]))
    model = cell.model
    assert model is not None, "a layer has a model"
    rank = cell.measured_ranks[0]
    return {
        "run_id": record["run_id"],
        "cell_id": record["cell_id"],
        "hardware": record["hardware"],
        "kernel": record["kernel"],
        "version": record["kernel_version"],
        "source": record["kernel"],
        "dtype": record["precision"],
        "hidden": model.hidden,
        "inter": model.moe_intermediate,
        "top_k": model.top_k,
        "num_experts": model.num_experts,
        "tp": cell.parallel.tp,
        "ep": cell.ep,
        "distribution": record["skew"],
        "tokens": int(record["tokens_per_rank"]) * cell.ep,
        "pairs": float(pairs.loc[(record["cell_id"], rank)]),
        "touched": float(record["touched_experts"]),
        "others": 0.0,
        "us": record["latency_us"],
        "scope": record["scope"],
        "cache": record["cache"],
        "experts_alone": record["scope"] == "layer_no_router" and not model.shared_intermediate,
        "cell_json": record["cell_json"],
    }


def to_parquet(frame: pd.DataFrame) -> bytes:
    """The frame as a compressed Parquet file."""
    data = io.BytesIO()
    frame.to_parquet(data, compression="zstd", index=False)
    return data.getvalue()
