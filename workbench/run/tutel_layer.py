"""Tutel's testbed and layer priced: A100 of eight a node with one HDR NIC each, padded all-to-alls, chunked overlap.

All-to-alls are even and in float32. Linear sends a message to every rank, most of them across rails; 2DH goes inside
the node first and then along the rail, with two copies in memory. Links are those measured of A100 and its NCCL; a
message costs what published points of RDMA say, its own along a rail and across.
"""

from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import ceil

import numpy as np

from workbench.simulate.compute import copy_stage, rates_of
from workbench.simulate.even import linear_loads, two_dh_loads
from workbench.simulate.link_rates import LinkRates
from workbench.simulate.links import collective_links
from workbench.simulate.network import price_hops
from workbench.simulate.penalties import CROSS, RAIL
from workbench.simulate.timeline import Message, Pass, Step, Task, Transfer, latency_us
from workbench.spec.catalog import resolve_cluster
from workbench.spec.cluster import Cluster, ClusterRef, Links
from workbench.spec.precision import PRECISIONS

GPUS_PER_NODE = 8
FLOAT_BYTES = 4
TENSOR_FLOPS_PER_US = 71e6
"""What the computing part of the paper's table 2 works out to on an A100, in TF32."""
TILE, MULTIPROCESSORS = (256, 128), 108
"""The largest common tile of A100's library GEMMs, and its SMs."""
HOST_US = 20.0
"""What Python adds to a call, as FlashInfer's authors found between kernel and event times."""
EXCHANGE_SMS = 24
"""SMs of an exchange: DeepEP's larger number."""


def cluster_of(num_gpus: int, *, congested: bool = False) -> Cluster:
    """The testbed of so many GPUs."""
    links = Links(penalties=("congestion",)) if congested else Links()
    nodes = num_gpus // GPUS_PER_NODE
    return resolve_cluster(ClusterRef(base="a100-hdr", nodes=nodes, gpus_per_node=GPUS_PER_NODE, links=links))


@cache
def _links(num_gpus: int, congested: bool) -> LinkRates:
    nodes = num_gpus // GPUS_PER_NODE
    rates = collective_links(cluster_of(num_gpus, congested=congested), num_ranks=GPUS_PER_NODE, nodes=nodes).out
    return replace(rates, alpha_us=(RAIL.alpha_us, CROSS.alpha_us))


@cache
def all_to_all_us(num_gpus: int, num_bytes: float, *, two_dh: bool = False, congested: bool = False) -> float:
    """One all-to-all of ``num_bytes`` a GPU, what stays with it included."""
    loads = (two_dh_loads if two_dh else linear_loads)(num_gpus, GPUS_PER_NODE)
    costs = price_hops(loads, _links(num_gpus, congested), row_bytes=num_bytes / num_gpus)
    return sum(cost.total_us for cost in costs) + 2 * two_dh * _copy_us(num_bytes)


def _copy_us(num_bytes: float) -> float:
    rates = rates_of(cluster_of(GPUS_PER_NODE).hardware, PRECISIONS["bf16"])
    return float(copy_stage("copy", rows_R=np.ones(1), row_bytes=2 * num_bytes, rates=rates).duration_us_R(rates)[0])


def overtaken_at(num_bytes: float, gpus: tuple[int, ...]) -> int | None:
    """The fewest of ``gpus`` from which on 2DH is ahead of linear; None where it is not with the most of them."""
    ahead = [all_to_all_us(count, num_bytes, two_dh=True) < all_to_all_us(count, num_bytes) for count in gpus]
    behind = [index for index, faster in enumerate(ahead) if not faster]
    start = behind[-1] + 1 if behind else 0
    return gpus[start] if start < len(gpus) else None


@dataclass(frozen=True)
class TutelLayer:
    """Tokens of one GPU, top-2; ``experts`` a GPU, half of one where two GPUs share it."""

    experts: float
    hidden: int
    intermediate: int
    tokens: int


LAYERS = tuple(
    TutelLayer(*shape) for shape in product((0.5, 1, 2), (1024, 2048, 4096), (1024, 2048, 4096), (4096, 16384, 65536))
)
"""The paper's table 6 as far as it says what was varied: 81 of its 243 configurations."""
DEGREES = (1, 2, 4, 8)


def step_us(layer: TutelLayer, num_gpus: int, degree: int, *, interferes: bool = True) -> float:
    """Forward and backward of a layer whose capacity is cut into ``degree`` chunks; the backward computes twice.

    ``interferes``: while both run, messages and computation slow each other by the SMs of the exchange.
    """
    lost = EXCHANGE_SMS / MULTIPROCESSORS if interferes else 0.0
    slowed = 1 + (1 / (1 - lost) - 1) * (degree - 1) / degree
    sent = layer.tokens * 2 * layer.hidden * FLOAT_BYTES / degree
    message_us = all_to_all_us(num_gpus, sent) * slowed + HOST_US
    compute_us = chunk_us(layer, degree) * slowed
    launch_us = HOST_US + 3 * cluster_of(GPUS_PER_NODE).hardware.launch_us
    passes = [_pass(degree, message_us, factor * compute_us + launch_us) for factor in (1, 2)]
    return sum(latency_us([one], num_ranks=1, overlaps=degree > 1) for one in passes)


def chunk_us(layer: TutelLayer, degree: int) -> float:
    """Two GEMMs of a chunk: waves of tiles over all SMs, the last of which is seldom full."""
    experts = max(1.0, layer.experts)
    rows = layer.tokens * 2 / degree / experts
    flops = 4.0 * layer.tokens * 2 / degree * layer.hidden * layer.intermediate

    def padded(columns: int) -> float:
        tiles = ceil(rows / TILE[0]) * ceil(columns / TILE[1]) * experts
        return ceil(tiles / MULTIPROCESSORS) * MULTIPROCESSORS * TILE[0] * TILE[1] / (experts * rows * columns)

    return flops / TENSOR_FLOPS_PER_US * (padded(layer.intermediate) + padded(layer.hidden)) / 2


def _pass(degree: int, message_us: float, compute_us: float) -> Pass:
    zero, message = np.zeros(1), np.array([message_us])
    task = Task("gemm1", np.array([compute_us]), zero, zero)
    out, back = (Message((), (Transfer(name, message, message_us, zero),)) for name in ("dispatch", "combine"))
    return Pass((), ((Step((), out), Step((task,), back), Step(())),) * degree)


def mean_losses(num_gpus: int, *, interferes: bool = True) -> dict[int, float]:
    """Percent that each degree, kept for all of LAYERS, takes longer than the best of each of them."""
    us = np.array([[step_us(layer, num_gpus, degree, interferes=interferes) for degree in DEGREES] for layer in LAYERS])
    losses = 100 * (us / us.min(axis=1, keepdims=True) - 1).mean(axis=0)
    return dict(zip(DEGREES, losses.tolist(), strict=True))
