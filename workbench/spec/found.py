"""What a cluster at hand turns out to have, put where a scenario leaves its topology out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.spec.block import ReadBlock
from workbench.spec.cluster import Cluster
from workbench.spec.raw import Raw, lay


@dataclass(frozen=True)
class FoundCluster:
    """Ranks that each node can hold, by the device they run on; nodes without any are left out."""

    cpu: tuple[int, ...] = ()
    cuda: tuple[int, ...] = ()

    def shape(self, device: str, *, nodes: int | None = None, per_node: int | None = None) -> tuple[int, int] | None:
        """(nodes, ranks on each) that use the most of what there is, either given; None where it cannot be had."""
        amounts = sorted(self.cuda if device == "cuda" else self.cpu, reverse=True)
        shapes = [(count, least if per_node is None else per_node) for count, least in enumerate(amounts, start=1)]
        fit = [
            (count, per) for count, per in shapes if 0 < per <= amounts[count - 1] and (nodes is None or count == nodes)
        ]
        return max(fit, key=lambda shape: (shape[0] * shape[1], shape[1]), default=None)

    def under(self, raw: Raw, read: ReadBlock) -> Raw:
        """``raw`` with ``cluster.nodes`` and ``cluster.gpus_per_node`` as found, where it is to be measured here.

        What the scenario says of either stands, and a cluster of the catalog says both. A group of ranks smaller than
        the cluster takes as few nodes as hold it.
        """
        written = raw.get("cluster", {})
        if read.block.engine != "measure" or not isinstance(written, Mapping) or "base" in written:
            return raw
        nodes, per_node = written.get("nodes"), written.get("gpus_per_node")
        shape = None if nodes and per_node else self._shape(read.cluster, nodes, per_node, _asked(read))
        return raw if shape is None else _with(raw, {"nodes": shape[0], "gpus_per_node": shape[1]})

    def _shape(
        self, cluster: Cluster, nodes: int | None, per_node: int | None, ranks: int | None
    ) -> tuple[int, int] | None:
        shape = self.shape(cluster.device, nodes=nodes, per_node=per_node)
        if shape is None or nodes is not None or ranks is None:
            return shape
        return min(shape[0], max(1, -(-ranks // shape[1]))), shape[1]


@dataclass(frozen=True)
class AsAsked(FoundCluster):
    """A cluster not seen yet, taken to have what is asked of it, on one node."""

    def _shape(
        self, cluster: Cluster, nodes: int | None, per_node: int | None, ranks: int | None
    ) -> tuple[int, int] | None:
        ranks = ranks or 1
        if per_node is not None:
            return max(1, -(-ranks // per_node)), per_node
        return nodes or 1, max(1, -(-ranks // (nodes or 1)))


def _asked(read: ReadBlock) -> int | None:
    """Ranks times their tensor and pipeline peers that the block names, if it does."""
    parallel = read.block.parallel
    group = len(parallel.ranks) if parallel.ranks != "all" else parallel.ep
    return None if group is None else group * parallel.tp * parallel.pp


def _with(raw: Raw, fields: Mapping[str, Any]) -> Raw:
    for name, value in fields.items():
        raw = lay(raw, ("cluster", name), value)
    return raw
