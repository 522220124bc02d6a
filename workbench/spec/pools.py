"""The two pools of disaggregated serving, each resolved as a block of its own."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from workbench.spec.block import ReadBlock
from workbench.spec.catalog import resolve_cluster
from workbench.spec.cluster import Cluster, ClusterRef
from workbench.spec.dispatch import Balance, Parallel
from workbench.spec.faults import Fault
from workbench.spec.scenario import Pool

POOLS = ("prefill", "decode")
_OWN = ("precision", "kernel", "dispatch", "balance")
Decided = tuple[Parallel, Balance]


def with_pools(
    read: ReadBlock, decide: Callable[[ReadBlock], tuple[Decided | None, list[Fault]]]
) -> tuple[ReadBlock, list[Fault]]:
    """The block of the decode pool, its ``serving`` filled in; or every fault of either pool.

    ``decide`` gives the degrees and the redundancy of a block, or the rules that it breaks.
    """
    serving, faults, pools = read.block.serving, _serving_faults(read), {}
    assert serving is not None
    blocks = {name: _block_of(read, getattr(serving, name)) for name in POOLS}
    for name, block in blocks.items():
        decided, found = decide(block)
        faults += [Fault(("serving", name, *fault.path), fault.value, fault.message) for fault in found]
        if decided is not None:
            pools[name] = _filled(getattr(serving, name), block, *decided)
    if faults:
        return read, faults
    whole = serving.model_copy(update=pools)
    return replace(blocks["decode"], block=blocks["decode"].block.model_copy(update={"serving": whole})), []


def _serving_faults(read: ReadBlock) -> list[Fault]:
    block, faults = read.block, []
    if block.scope.kind != "model":
        faults.append(Fault(("serving",), block.scope.kind, "serving is of scope model; set scope: model"))
    for name in ("isl", "osl"):
        if getattr(block.workload, name) is None:
            message = f"serving needs workload.{name}: tokens of a prompt (isl) and of an answer (osl)"
            faults.append(Fault(("workload", name), None, message))
    return faults


def _block_of(read: ReadBlock, pool: Pool) -> ReadBlock:
    own: dict[str, Any] = {name: getattr(pool, name) for name in _OWN if getattr(pool, name) is not None}
    if pool.tokens_per_rank is not None:
        own["workload"] = read.block.workload.model_copy(update={"tokens_per_rank": pool.tokens_per_rank})
    block = read.block.model_copy(update=own | {"parallel": pool.parallel})
    return replace(read, block=block, cluster=resolve_cluster(pool.cluster))


def _filled(pool: Pool, read: ReadBlock, parallel: Parallel, balance: Balance) -> Pool:
    own = {name: getattr(read.block, name) for name in ("precision", "kernel", "dispatch")}
    return pool.model_copy(
        update=own | {"cluster": cluster_ref(read.cluster), "parallel": parallel, "balance": balance}
    )


def cluster_ref(cluster: Cluster) -> ClusterRef:
    """A planned cluster written out, so that nothing has to be looked up again."""
    return ClusterRef(
        hardware=cluster.hardware, nodes=cluster.nodes, gpus_per_node=cluster.gpus_per_node, device=cluster.device,
        memory=cluster.memory_bytes, usd_per_gpu_hour=cluster.usd_per_gpu_hour, host=cluster.host, name=cluster.name,
    )  # fmt: skip
