"""Constants of links fitted to DeepEP's published times on one and two nodes of H100, dispatch and combine apart.

T tokens a rank, k experts a token, E experts. With ``distinct(X)`` of X equal groups hit by a token:
- low latency, one node: a curve over the bytes of T * k rows that leave a rank;
- low latency, two nodes: latency + bytes through the NIC / rate; the rate over the NIC's own is ``nic_share``;
- normal: SMs copy a row for every node and one for every rank that a token reaches, distinct(nodes) + distinct(ranks)
  of them, by a curve for each number of SMs; on two nodes this, and not the NIC, is what takes the time;
- normal, before anything moves: ``base_us``, and ``barrier_us`` for each doubling of nodes, since a barrier of N
  nodes takes log2(N) rounds.
The times of the normal mode hold its exchange of counts.
"""

from dataclasses import dataclass
from functools import cache
from math import comb

import numpy as np
import pandas as pd

from workbench.comm.payload import metadata_bytes, payload_bytes
from workbench.simulate.curves import SizeCurve, size_curve
from workbench.simulate.published import published

STRATEGIES = {"low_latency": "low_latency", "normal": "node_dedup"}
DTYPES = {"dispatch": "fp8_block", "combine": "bf16"}
REFERENCE, VERSION = "h100-sxm", "0.5.6.post2"
"""The part and the version with rows of several nodes."""
GPUS_PER_NODE = 8
NIC_BYTES_PER_US = 50e3
SHAPE = {"hidden": 7168, "topk": 8, "num_experts": 256}
SMALLEST = 8
"""Tokens up to which a normal exchange takes its base time."""


@dataclass(frozen=True)
class Way:
    """One direction. ``copied`` and ``copied_far`` are by SMs: one node, several."""

    one_sided: SizeCurve
    one_sided_far_us: float
    nic_share: float
    copied: dict[int, SizeCurve]
    copied_far: dict[int, SizeCurve]
    base_us: dict[int, float]
    barrier_us: float


@dataclass(frozen=True)
class Fabric:
    """Both directions."""

    dispatch: Way
    combine: Way


def deepep_rows() -> pd.DataFrame:
    """The table ``a2a_deepep`` with catalog names of parts."""
    frame = published("a2a_deepep")
    return frame.assign(hardware=frame["hardware"].str.replace("_", "-"))


@cache
def reference_fabric() -> Fabric:
    """Of the rows of one and two nodes."""
    rows = deepep_rows()
    rows = rows[rows["hardware"].eq(REFERENCE) & rows["version"].eq(VERSION) & rows["nodes"].le(2)]
    return fit_fabric(rows)


@cache
def near_parts() -> tuple[str, ...]:
    """Parts with rows of one node."""
    return tuple(sorted(deepep_rows()["hardware"].unique()))


@dataclass(frozen=True)
class NearWay:
    """One direction on one node: curves as in ``Way``."""

    one_sided: SizeCurve
    copied: dict[int, SizeCurve]


@cache
def near_shapes(hardware: str) -> frozenset[tuple[int, ...]]:
    """(hidden, top-k, experts) that low latency was timed with on one node of a part."""
    rows = deepep_rows()
    rows = rows[rows["hardware"].eq(hardware) & rows["nodes"].eq(1)]
    return frozenset(rows[list(SHAPE)].itertuples(index=False, name=None))


@cache
def near_way(hardware: str, way: str, shape: tuple[int, ...] = tuple(SHAPE.values())) -> NearWay:
    """Curves of a part's newest rows of one node; ``way`` is dispatch or combine, ``shape`` one of ``near_shapes``."""
    rows = deepep_rows()
    rows = rows[rows["hardware"].eq(hardware) & rows["nodes"].eq(1) & rows["op"].eq(way)]
    rows = rows[rows["version"].eq(rows["version"].iloc[rows["version"].map(_number).argmax()])]
    rows = rows[(rows[list(SHAPE)] == list(shape)).all(axis=1)]
    modes = rows["mode"]
    return NearWay(one_sided_curve(rows[modes.eq("low_latency")], way), copied_curves(rows[modes.eq("normal")], way))


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def fit_fabric(rows: pd.DataFrame) -> Fabric:
    """Constants from rows of one and two nodes of one part and version. Raises ValueError for rows of more nodes."""
    if rows["nodes"].max() > 2:
        raise ValueError("link constants are fitted to one and two nodes")
    return Fabric(**{way: _fit_way(rows[rows["op"].eq(way)], way) for way in DTYPES})


def _fit_way(rows: pd.DataFrame, way: str) -> Way:
    fast, normal = (rows[rows["mode"].eq(mode)] for mode in ("low_latency", "normal"))
    latency_us, us_per_byte = _line(out_bytes(fast[fast["nodes"].eq(2)], way), fast[fast["nodes"].eq(2)]["us"])
    near, far = normal[normal["nodes"].eq(1)], normal[normal["nodes"].eq(2)]
    base_us = {int(sms): _base_us(part) for sms, part in far.groupby("sms")}
    near_us = {int(sms): _base_us(part) for sms, part in near.groupby("sms")}
    return Way(
        one_sided=one_sided_curve(fast[fast["nodes"].eq(1)], way),
        one_sided_far_us=latency_us,
        nic_share=min(1.0, 1 / us_per_byte / NIC_BYTES_PER_US),
        copied=copied_curves(near, way),
        copied_far=copied_curves(far, way),
        base_us=base_us,
        barrier_us=max(0.0, float(np.mean([base_us[sms] - near_us[sms] for sms in base_us.keys() & near_us.keys()]))),
    )


def _line(size: np.ndarray, us: pd.Series) -> tuple[float, float]:
    """Latency and microseconds a byte with the least sum of squared relative errors."""
    weighed = np.stack([1 / us, size / us], axis=1)
    latency, slope = np.linalg.lstsq(weighed, np.ones(len(us)), rcond=None)[0]
    return float(latency), float(slope)


def _base_us(rows: pd.DataFrame) -> float:
    return float(rows[rows["num_tokens"].le(SMALLEST)]["us"].median())


def one_sided_curve(rows: pd.DataFrame, way: str) -> SizeCurve:
    """Low latency on one node: microseconds over bytes that leave a rank."""
    return size_curve(leaving_bytes(rows, way), rows["us"])


def leaving_bytes(rows: pd.DataFrame, way: str) -> np.ndarray:
    """Low latency on one node: bytes of a rank to the others."""
    return _pair_bytes(rows, way) * ((GPUS_PER_NODE - 1) / GPUS_PER_NODE)


def copied_curves(rows: pd.DataFrame, way: str) -> dict[int, SizeCurve]:
    """Normal: microseconds over bytes that the SMs of a rank copy, for each number of SMs."""
    return {int(sms): size_curve(copied_bytes(part, way), part["us"]) for sms, part in rows.groupby("sms")}


def out_bytes(rows: pd.DataFrame, way: str) -> np.ndarray:
    """Low latency: bytes of a rank through its NIC, the share of pairs on other nodes."""
    nodes = rows["nodes"].to_numpy()
    return _pair_bytes(rows, way) * (nodes - 1) / nodes


def copied_bytes(rows: pd.DataFrame, way: str) -> np.ndarray:
    """Normal: a row for each node that a token reaches, where there are several, and one for each rank."""
    copies = [
        distinct(nodes * GPUS_PER_NODE, experts, top_k) + (distinct(nodes, experts, top_k) if nodes > 1 else 0.0)
        for nodes, experts, top_k in rows[["nodes", "num_experts", "topk"]].itertuples(index=False)
    ]
    return rows["num_tokens"].to_numpy() * np.array(copies) * wire_bytes(rows, way)


def _pair_bytes(rows: pd.DataFrame, way: str) -> np.ndarray:
    return (rows["num_tokens"] * rows["topk"]).to_numpy() * wire_bytes(rows, way)


def wire_bytes(rows: pd.DataFrame, way: str) -> np.ndarray:
    """Bytes of a row: FP8 with its block scales and its routing going out, bf16 coming back."""
    keys = rows[["mode", "hidden", "topk"]].itertuples(index=False)
    return np.array([_row_bytes(way, *key) for key in keys], float)


@cache
def _row_bytes(way: str, mode: str, hidden: int, top_k: int) -> int:
    routing = metadata_bytes(STRATEGIES[mode], int(top_k)) if way == "dispatch" else 0
    return payload_bytes(int(hidden), DTYPES[way]) + routing


@cache
def distinct(groups: int, experts: int, top_k: int) -> float:
    """Groups that a token's experts fall in, of experts spread evenly over ``groups`` and chosen at random."""
    share = experts // groups
    return groups * (1 - comb(experts - share, top_k) / comb(experts, top_k))
