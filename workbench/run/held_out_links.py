"""Times of exchanges, each predicted without its measurement: curves with a size left out, and dispatch plans on more
nodes than the links' constants have seen.

Frames have ``us``, ``predicted_us``, ``hardware``, ``dtype``, ``tokens``, ``kernel``, ``curve`` and ``split``.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pandas as pd

from workbench.simulate.collectives import ALL_TO_ALL, fitted_curve, leaving_curve, nccl_rows
from workbench.simulate.curves import SizeCurve, left_out
from workbench.simulate.fabric import (
    DTYPES,
    REFERENCE,
    SHAPE,
    STRATEGIES,
    VERSION,
    Fabric,
    deepep_rows,
    fit_fabric,
    leaving_bytes,
    near_way,
)
from workbench.simulate.links import Links, one_sided_links, streamed_links
from workbench.simulate.passes import exchange_legs
from workbench.simulate.published import published
from workbench.simulate.traffic import group_traffic
from workbench.spec.catalog import load_hardware, resolve_cluster, resolve_model
from workbench.spec.cluster import ClusterRef
from workbench.spec.precision import PRECISIONS
from workbench.spec.scenario import Cell

NCCL_KEYS = ["hardware", "op", "num_gpus"]
DEEPEP_KEYS = ["hardware", "version", "mode", "op", "nodes", "sms", "hidden", "topk", "num_experts"]
BACKEND_KEYS = [
    "hardware", "version", "comm_backend", "phase", "comm_dtype", "ep", "nodes", "sms", "hidden", "topk", "num_experts",
]  # fmt: skip
VALIDATED_SMS = (20, 24)
CLUSTERS = {"H800": "h800-sxm", "H100": "h100-sxm", "H20": "h20"}


@cache
def nccl_left_out() -> pd.DataFrame:
    """Every size of every NCCL collective from the other sizes; ``tokens`` are bytes."""
    return _left_out(nccl_rows(), NCCL_KEYS, size="bytes", kernel="op")


@cache
def deepep_left_out() -> pd.DataFrame:
    """Every token count of DeepEP's curves from the other counts."""
    return _left_out(deepep_rows(), DEEPEP_KEYS, size="num_tokens", kernel="mode")


@cache
def backends_left_out() -> pd.DataFrame:
    """The same for the other MoE all-to-alls."""
    frame = published("a2a_moe_backends")
    frame = frame.assign(hardware=frame["hardware"].str.replace("_", "-"))
    return _left_out(frame, BACKEND_KEYS, size="num_tokens", kernel="comm_backend")


def _left_out(frame: pd.DataFrame, keys: list[str], *, size: str, kernel: str) -> pd.DataFrame:
    parts = []
    for key, rows in frame.groupby(keys, dropna=False):
        mean = rows.groupby(size, as_index=False)["us"].mean()
        if len(mean) < 3:
            continue
        predicted, ends = left_out(mean[size].to_numpy(float), mean["us"].to_numpy())
        known = dict(zip(keys, key, strict=True))
        parts.append(
            mean.rename(columns={size: "tokens"}).assign(
                **known, predicted_us=predicted, is_end=ends, kernel=known[kernel],
                curve="/".join(map(str, key)), dtype=known.get("comm_dtype", "all"),
            )
        )  # fmt: skip
    found = pd.concat(parts, ignore_index=True)
    return found.assign(split=found["tokens"].astype(str))


@cache
def moved_left_out() -> pd.DataFrame:
    """Every NCCL all-to-all as that of another part by the rates of both parts' links; ``split`` is the other part."""
    rows = nccl_rows()
    rows = rows[rows["op"].eq(ALL_TO_ALL)]
    parts = []
    for (hardware, count), mine in rows.groupby(["hardware", "num_gpus"]):
        for source in sorted(set(rows["hardware"]) - {hardware}):
            rates = [load_hardware(name).scale_up.gb_per_s for name in (hardware, source)]
            curve = leaving_curve(source, int(count)).on_links(rates[0] / rates[1])
            parts.append(_predicted(mine, curve, int(count)).assign(split=source))
    return pd.concat(parts, ignore_index=True)


@cache
def fitted_rows() -> pd.DataFrame:
    """NCCL all-to-alls of eight GPUs by the alpha and bandwidth of their part; the rows are those of the fit."""
    rows = nccl_rows()
    rows = rows[rows["op"].eq(ALL_TO_ALL) & rows["num_gpus"].eq(8)]
    parts = [(mine, load_hardware(hardware).measured_all_to_all) for hardware, mine in rows.groupby("hardware")]
    found = [_predicted(mine, fitted_curve(fit), 8) for mine, fit in parts if fit is not None]
    return pd.concat(found).assign(split="")


def _predicted(rows: pd.DataFrame, curve: SizeCurve, count: int) -> pd.DataFrame:
    predicted = curve.at(rows["bytes"].to_numpy() * (count - 1) / count)
    return rows.assign(predicted_us=predicted, tokens=rows["bytes"], kernel=ALL_TO_ALL, dtype="all")


@cache
def other_shapes() -> pd.DataFrame:
    """DeepEP's low latency on one node for other shapes, each from the curve of DeepSeek's by the bytes that leave."""
    rows = deepep_rows()
    rows = rows[rows["mode"].eq("low_latency") & rows["nodes"].eq(1)]
    rows = rows[(rows[list(SHAPE)] != pd.Series(SHAPE)).any(axis=1)]
    parts = []
    for (hardware, way), mine in rows.groupby(["hardware", "op"]):
        predicted = near_way(hardware, way).one_sided.at(leaving_bytes(mine, way))
        parts.append(mine.assign(predicted_us=predicted, tokens=mine["num_tokens"], kernel="low_latency", dtype="all"))
    found = pd.concat(parts, ignore_index=True)
    return found.assign(split=found[list(SHAPE)].astype(str).agg("/".join, axis=1))


# Dispatch plans on several nodes


def near_rows() -> pd.DataFrame:
    """Rows of one and two nodes, of which link constants are made."""
    rows = deepep_rows()
    return rows[rows["hardware"].eq(REFERENCE) & rows["version"].eq(VERSION) & rows["nodes"].le(2)]


@cache
def four_nodes(sms: Sequence[int] = (4, 8, 12, 16, *VALIDATED_SMS)) -> pd.DataFrame:
    """DeepEP's rows of four nodes as the price of the plans of ``low_latency`` and ``node_dedup``.

    ``split`` names mode, direction, and SMs or experts. ``still_us`` is the price without further rounds of a barrier.
    """
    rows = deepep_rows()
    rows = rows[rows["version"].eq(VERSION) & rows["nodes"].eq(4) & rows["sms"].isin((0, *sms))]
    return priced_rows(rows, fit_fabric(near_rows()))


def priced_rows(rows: pd.DataFrame, fabric: Fabric) -> pd.DataFrame:
    """``rows`` of the table ``a2a_deepep`` with ``predicted_us`` from ``fabric`` alone."""
    keys = ["mode", "nodes", "num_experts", "num_tokens"]
    parts = []
    for (mode, nodes, experts, tokens), mine in rows.groupby(keys):
        cell = deepep_cell(STRATEGIES[mode], nodes=int(nodes), experts=int(experts), tokens=int(tokens))
        for row in mine.to_dict("records"):
            priced = {name: plan_us(cell, fabric, row["op"], sms=row["sms"], rounds=name == "predicted_us")
                      for name in ("predicted_us", "still_us")}  # fmt: skip
            parts.append(row | priced)
    found = pd.DataFrame(parts)
    sms, experts = found["sms"].astype(str) + " SMs", found["num_experts"].astype(str) + " experts"
    by = np.where(found["mode"].eq("normal"), sms, experts)
    split = found["mode"] + " " + found["op"] + ", " + by
    return found.assign(split=split, kernel=found["mode"], tokens=found["num_tokens"], dtype=found["op"].map(DTYPES))


def deepep_cell(
    strategy: str, *, nodes: int, experts: int, tokens: int, hardware: str = REFERENCE, gpus_per_node: int = 8
) -> Cell:
    """The exchange of DeepEP's own benchmark: 8 experts a token of ``experts`` at random, FP8 out and bf16 back."""
    model = {
        "base": "deepseek-v3", "num_experts": experts, "top_k": 8, "router": {"kind": "softmax_topk"},
        "num_shared_experts": 0, "shared_intermediate": 0,
    }  # fmt: skip
    return Cell.model_validate({
        "cell_id": "deepep", "scenario": "validation", "group": "", "trace_digest": None,
        "model": resolve_model(model), "parallel": {"ep": gpus_per_node * nodes}, "precision": PRECISIONS["fp8_block"],
        "cluster": resolve_cluster(ClusterRef(hardware=hardware, nodes=nodes, gpus_per_node=gpus_per_node)),
        "workload": {"tokens_per_rank": tokens, "skew": "uniform"},
        "dispatch": {"strategy": strategy, "dispatch_dtype": DTYPES["dispatch"], "combine_dtype": DTYPES["combine"]},
    })  # fmt: skip


def plan_us(cell: Cell, fabric: Fabric | None, way: str, *, sms: int = 0, rounds: bool = True) -> float:
    """Microseconds of dispatch or combine of the cell's plan on links made of ``fabric``."""
    far = cell.cluster.nodes > 1
    if cell.dispatch.strategy == "low_latency":
        links: Links = one_sided_links(cell.cluster, far=far, fabric=fabric)
    else:
        links = streamed_links(cell.cluster, far=far, num_sms=sms or None, fabric=fabric)
    legs = exchange_legs(cell, group_traffic(cell), links=links.out, back=links.back)
    us = sum(leg.cost.total_us for leg in legs[way == "combine"])
    rates = links.back if way == "combine" else links.out
    return us if rounds else us - rates.barrier_us * (cell.cluster.nodes > 2)


@cache
def other_clusters() -> pd.DataFrame:
    """Low-latency times that others published for 16 to 256 ranks, priced as they are on our constants.

    ``split`` is the cluster; without NVLink every rank is a node by itself. EP 128 and 256 with NVLink are left out,
    as the source carries them over from its table without.
    """
    frame = published("comm_published")
    frame = frame[frame["mode"].str.startswith("low_latency") & frame["metric"].eq("latency") & frame["gpus"].ge(16)]
    parts = []
    for row in frame.to_dict("records"):
        alone = "pure RDMA" in row["mode"]
        if not alone and row["gpus"] > 64:
            continue
        hardware = next((name for name in CLUSTERS if name in row["hardware"]), None)
        if hardware is None or row["op"] not in DTYPES:
            continue
        experts, nodes = 288 if 288 % row["gpus"] == 0 else 256, row["gpus"] if alone else row["nodes"]
        cell = deepep_cell(
            "low_latency", nodes=int(nodes), experts=experts, tokens=int(row["tokens_per_rank"]),
            hardware=CLUSTERS[hardware], gpus_per_node=1 if alone else 8,
        )  # fmt: skip
        known = {"hardware": CLUSTERS[hardware], "us": row["value"], "tokens": int(row["tokens_per_rank"])}
        known |= {"kernel": "low_latency", "dtype": DTYPES[row["op"]], "gpus": row["gpus"]}
        where = f"{hardware}, {'NIC alone' if alone else 'NVLink and NIC'}"
        parts.append(known | {"split": where, "predicted_us": plan_us(cell, None, row["op"])})
    return pd.DataFrame(parts)
