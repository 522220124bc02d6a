"""What a gang asks of a cluster, whether the cluster has it, and the words for when it has not."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from workbench.spec.scenario import Cell

NO_GPU_VALUES = ("", "-1", "NoDevFiles")


@dataclass(frozen=True)
class GangShape:
    """Cells of one shape share a gang: ``world`` processes, ``ranks_per_node`` of them on one (virtual) node."""

    world: int
    device: str
    ranks_per_node: int

    @property
    def num_nodes(self) -> int:
        return -(-self.world // self.ranks_per_node)

    def __str__(self) -> str:
        ranks = f"{self.world} {self.device} rank{'s' if self.world > 1 else ''}"
        return ranks if self.num_nodes == 1 else f"{ranks} on {self.num_nodes} nodes"


@dataclass(frozen=True)
class Node:
    """One living Ray node and what it declares."""

    name: str
    resources: Mapping[str, float]


@dataclass(frozen=True)
class Layout:
    """Bundles of a placement group: ``bundle_of[p]`` holds process p. Which rank a process is, its node decides."""

    strategy: str
    bundles: tuple[dict[str, float], ...]
    bundle_of: tuple[int, ...]


class Infeasible(Exception):
    """The gang cannot exist on this cluster; the text says what was asked and what there is."""


def shape_of(cell: Cell) -> GangShape:
    """The gang that measures a cell. A chosen subset of the ranks runs side by side on one node."""
    world = len(cell.measured_ranks)
    whole = world == cell.ep and world > cell.cluster.gpus_per_node
    return GangShape(world, cell.cluster.device, cell.cluster.gpus_per_node if whole else world)


def lay_out(shape: GangShape, nodes: Sequence[Node], *, slot: str) -> Layout:
    """Bundles for ``shape``: one a node when the cluster has that many nodes, else virtual nodes.

    Those stand all on one host, or else whole on as few as hold them. ``slot`` is the resource of a CPU rank. Raises
    Infeasible when no choice of the living nodes can ever hold the gang.
    """
    resource = "GPU" if shape.device == "cuda" else slot
    amounts = sorted((node.resources.get(resource, 0.0) for node in nodes), reverse=True)
    spread = shape.num_nodes > 1 and len(nodes) >= shape.num_nodes
    bundle_of = tuple(rank // shape.ranks_per_node for rank in range(shape.world))
    bundles = tuple({resource: float(bundle_of.count(index))} for index in range(shape.num_nodes))
    if spread and amounts[shape.num_nodes - 1] >= shape.ranks_per_node:
        return Layout("STRICT_SPREAD", bundles, bundle_of)
    if amounts and amounts[0] >= shape.world:
        return Layout("STRICT_PACK", ({resource: float(shape.world)},), (0,) * shape.world)
    if shape.num_nodes > 1 and sum(amount // shape.ranks_per_node for amount in amounts) >= shape.num_nodes:
        return Layout("PACK", bundles, bundle_of)
    raise Infeasible(f"{asked(shape, resource)}; {existing(nodes, resource)}{gpu_hint(shape, os.environ)}")


def seat(layout: Layout, nodes: Sequence[tuple[str, str]]) -> tuple[int, ...]:
    """The processes of a gang in the order of their ranks: node by node, by address, a node that is not full last.

    ``nodes`` says for each process the address and the id of the node it runs on.
    """
    sizes = Counter(layout.bundle_of)

    def place(process: int) -> tuple[int, tuple[int, ...], str, int, int]:
        bundle, (address, node) = layout.bundle_of[process], nodes[process]
        return -sizes[bundle], tuple(ip_address(address).packed), node, bundle, process

    return tuple(sorted(range(len(nodes)), key=place))


def asked(shape: GangShape, resource: str) -> str:
    """``8 cuda ranks on one node (8 GPU)``: what a gang asks for."""
    if shape.num_nodes == 1:
        return f"asked for {shape} on one node ({shape.world} {resource})"
    return f"asked for {shape} ({shape.ranks_per_node} {resource} on each, or {shape.world} on one)"


def existing(nodes: Sequence[Node], resource: str) -> str:
    """What the cluster has of ``resource``, node by node."""
    each = ", ".join(f"{node.name}: {node.resources.get(resource, 0):g} {resource}" for node in nodes[:8])
    more = f" and {len(nodes) - 8} more" if len(nodes) > 8 else ""
    return f"the cluster has {len(nodes)} node{'s' if len(nodes) != 1 else ''} ({each}{more})"


def gpu_hint(shape: GangShape, environment: Mapping[str, str]) -> str:
    """Names CUDA_VISIBLE_DEVICES and its value where that variable may be why GPUs are missing."""
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if shape.device != "cuda" or value is None:
        return ""
    effect = "hides every GPU" if value.strip() in NO_GPU_VALUES else "lists the only GPUs that Ray may use"
    return f"; CUDA_VISIBLE_DEVICES={value!r} {effect}: unset it, or list GPUs that exist (nvidia-smi -L)"
