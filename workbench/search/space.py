"""What a search may change: the lists of ``goal.space``, and of the fields below those that the scenario leaves open.

A field that the scenario sets stays as it is. Fields in the order in which they are tried:

- ``cluster.nodes``: powers of two up to ``goal.max_gpus``, where that is given;
- ``parallel.tp`` and, for whole models, ``parallel.attn_tp``: powers of two inside a node. ``parallel.ep`` left out
  takes all other GPUs, so that tp 1 is experts and data in parallel, and more tp cuts each expert over GPUs: the
  adaptive parallelism of Tutel's paper;
- ``dispatch.strategy`` with ``dispatch.overlap``: which all-to-all and how many parts hide it, the other half of it;
- ``precision``: what the part multiplies natively, four-bit weights, and what the model ships in;
- ``dispatch.dispatch_dtype``; ``balance.placement``: none redundant, or one more slot a rank by eplb under skew;
- ``workload.tokens_per_rank`` of whole models, or of the pools of ``serving`` with their ``replicas``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from workbench.spec.catalog import resolve_cluster, resolve_model
from workbench.spec.cluster import Cluster
from workbench.spec.model import Model
from workbench.spec.raw import Raw, holds, keys_of, lay
from workbench.spec.scenario import Block, Goal

Choice = tuple[int, ...]
STRATEGIES = {
    "decode": ("flat", "node_dedup", "low_latency", "allgather_reduce_scatter"),
    "prefill": ("flat", "node_dedup", "two_dh"),
    "train": ("flat", "node_dedup", "two_dh"),
}
CHUNKS = tuple({"kind": "chunk", "degree": degree} for degree in (2, 4, 8))
TOKENS = {"decode": tuple(2**n for n in range(10)), "prefill": (1024, 2048, 4096, 8192, 16384), "train": ()}
REPLICAS = (1, 2, 4, 8)
EVEN = ("uniform", "balanced")
REDUNDANT, ONE_MORE = ("balance", "placement", "redundant_experts"), "one_more"


@dataclass(frozen=True)
class Axis:
    """Values of one field by its dotted path."""

    path: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Space:
    """A block and the axes over it. A choice is one step of each axis."""

    raw: Raw
    axes: tuple[Axis, ...]

    @property
    def size(self) -> int:
        return prod(len(axis.values) for axis in self.axes)

    def block(self, choice: Choice) -> Raw:
        """The block of a choice."""
        raw = self.raw
        for axis, step in zip(self.axes, choice, strict=True):
            raw = lay(raw, keys_of(axis.path), axis.values[step])
        return raw

    def settings(self, choice: Choice) -> dict[str, Any]:
        """The choice by path."""
        return {axis.path: axis.values[step] for axis, step in zip(self.axes, choice, strict=True)}

    def choices(self) -> Iterator[Choice]:
        """Every choice."""
        yield from product(*(range(len(axis.values)) for axis in self.axes))


def space_of(raw: Raw, block: Block, goal: Goal) -> Space:
    """The space of a block with a goal; ``raw`` is the block as written, ``block`` the same read."""
    listed = [Axis(path, tuple(values)) for path, values in goal.space.items()]
    given = {axis.path for axis in listed}
    kept = {key: value for key, value in raw.items() if key not in ("goal", "name")}
    open_axes = [axis for axis in _open(kept, block, goal) if axis.path not in given and not _said(kept, axis.path)]
    for axis in open_axes:
        if len(axis.values) == 1:
            kept = lay(kept, keys_of(axis.path), axis.values[0])
    return Space(kept, (*listed, *(axis for axis in open_axes if len(axis.values) > 1)))


def _said(raw: Raw, path: str) -> bool:
    """Whether the block says something of a path: it, or a plain text in its place, such as ``placement: eplb``."""
    keys = keys_of(path)
    if holds(raw, keys):
        return True
    above = [keys[:end] for end in range(2, len(keys))]
    return any(holds(raw, upper) and not isinstance(_at(raw, upper), Mapping) for upper in above)


def _at(raw: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        raw = raw[key]
    return raw


def _open(raw: Raw, block: Block, goal: Goal) -> Iterator[Axis]:
    model = resolve_model(block.model)
    if block.serving is not None:
        yield from _pools(block)
        yield from _layer_axes(block, resolve_cluster(block.serving.decode.cluster), model, nodes=2)
        return
    cluster = resolve_cluster(block.cluster)
    nodes = _nodes(cluster, goal)
    yield Axis("cluster.nodes", nodes)
    per_node = cluster.gpus_per_node
    degrees = tuple(2**n for n in range(per_node.bit_length()) if per_node % 2**n == 0)
    yield Axis("parallel.tp", tuple(degree for degree in degrees if model.moe_intermediate % degree == 0))
    if block.scope.kind == "model":
        yield Axis("parallel.attn_tp", tuple(dict.fromkeys((1, per_node))))
    most = max(nodes) if not holds(raw, ("cluster", "nodes")) else cluster.nodes
    yield from _layer_axes(block, cluster, model, nodes=most)
    if block.scope.kind == "model":
        yield Axis("workload.tokens_per_rank", TOKENS[block.workload.phase])


def _nodes(cluster: Cluster, goal: Goal) -> tuple[int, ...]:
    most = (goal.max_gpus or 0) // cluster.gpus_per_node
    return tuple(2**n for n in range(most.bit_length()) if 2**n <= most) or (cluster.nodes,)


def _pools(block: Block) -> Iterator[Axis]:
    yield Axis("serving.prefill.replicas", REPLICAS)
    yield Axis("serving.decode.replicas", REPLICAS)
    yield Axis("serving.decode.tokens_per_rank", TOKENS["decode"][3:])
    yield Axis("serving.prefill.tokens_per_rank", TOKENS["prefill"])


def _layer_axes(block: Block, cluster: Cluster, model: Model, *, nodes: int) -> Iterator[Axis]:
    phase = "train" if block.scope.kind == "train_step" else block.workload.phase
    strategies = STRATEGIES[phase]
    if nodes == 1:
        strategies = tuple(name for name in strategies if name not in ("node_dedup", "two_dh"))
    yield Axis("dispatch.strategy", (*strategies, "none"))
    halves = () if block.scope.kind == "train_step" else ("two_batch",)
    yield Axis("dispatch.overlap", ("none", *halves, *CHUNKS))
    yield Axis("precision", _precisions(cluster, model, phase=phase))
    yield Axis("dispatch.dispatch_dtype", ("bf16", "fp8_block"))
    spread = {"kind": "eplb", "redundant_experts": ONE_MORE}
    if block.workload.skew.kind in EVEN:
        yield Axis("balance.placement", ({"kind": "linear", "redundant_experts": "auto"},))
    else:
        yield Axis("balance.placement", ({"kind": "linear", "redundant_experts": "auto"}, spread))


def _precisions(cluster: Cluster, model: Model, *, phase: str) -> tuple[str, ...]:
    part = cluster.hardware
    names = ["bf16", *(["fp8_block"] if part.fp8_dense_tflops else [])]
    if phase != "train":
        names += [*(["nvfp4"] if part.fp4_dense_tflops else []), "mxfp4_w4a16", model.native_precision]
    return tuple(dict.fromkeys(names))


def one_more_slot(raw: Raw, *, num_experts: int, ep: int) -> Raw:
    """``redundant_experts: one_more`` made a number: the fewest that give every rank a slot more than it needs."""
    return lay(raw, REDUNDANT, (-(-num_experts // ep) + 1) * ep - num_experts)


def wants_one_more(raw: Raw) -> bool:
    """Whether the redundancy of a block is still to be decided."""
    return holds(raw, REDUNDANT) and _at(raw, REDUNDANT) == ONE_MORE
