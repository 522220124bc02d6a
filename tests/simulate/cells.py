"""Planned cells for the simulator's tests, built from the schema and the catalog without a scenario file."""

from typing import Any

from workbench.spec.catalog import resolve_cluster, resolve_model
from workbench.spec.cluster import Cluster, ClusterRef, Hardware
from workbench.spec.model import Model
from workbench.spec.parallel import least_redundancy
from workbench.spec.precision import PRECISIONS
from workbench.spec.scenario import Cell

H200 = "h200-sxm"


def cluster_of(
    hardware: str | Hardware = H200, *, gpus: int = 8, gpus_per_node: int = 8, memory: int | None = None
) -> Cluster:
    per_node = min(gpus, gpus_per_node)
    return resolve_cluster(ClusterRef(hardware=hardware, nodes=gpus // per_node, gpus_per_node=per_node, memory=memory))


def make_cell(
    model: Any = "deepseek-v3", *, ep: int = 8, tp: int = 1, tokens: int = 128, precision: str = "bf16",
    cluster: Cluster | None = None, scope: Any = "layer", skew: Any = "uniform", dispatch: dict | None = None,
    redundant: int | None = None, placement: str = "linear", workload: dict | None = None, **rest: Any,
) -> Cell:  # fmt: skip
    """A Cell as the planner would make it; ``model`` is a catalog name, a mapping, or None."""
    resolved = model if model is None or isinstance(model, Model) else resolve_model(model)
    extra = redundant if redundant is not None else least_redundancy(resolved.num_experts, ep) if resolved else 0
    fields = {
        "cell_id": "cell", "scenario": "test", "group": "", "trace_digest": None, "model": resolved, "scope": scope,
        "cluster": cluster or cluster_of(gpus=ep * tp), "parallel": {"ep": ep, "tp": tp}, "dispatch": dispatch or {},
        "precision": PRECISIONS[precision], "balance": {"placement": {"kind": placement, "redundant_experts": extra}},
        "workload": {"tokens_per_rank": tokens, "skew": skew} | (workload or {}),
    }  # fmt: skip
    return Cell.model_validate(fields | rest)
