"""Dispatch plans priced on the shaped hosts by the simulator: one link a host, shared by its ranks."""

from workbench.comm.plan import DispatchPlan
from workbench.simulate.loads import plan_loads
from workbench.simulate.network import link_rates, price_hop
from workbench.spec.cluster import Cluster, ScaleOut, ScaleUp

INSIDE_GB_PER_S = 1.0
"""Rank to rank inside a host, over gloo: the catalog's figure for the processor at hand."""


def leg_s(plan: DispatchPlan, cluster: Cluster, *, row_bytes: int, host_gb_per_s: float, back: bool) -> float:
    """Seconds of all hops of a plan, one after the other; ``back``: of combine, which sends the rows the other way."""
    links = link_rates(_linked(cluster, host_gb_per_s))
    loads = plan_loads(plan.hops, node_R=plan.topology.node_of)
    costs = [price_hop(load.reverse if back else load, links, row_bytes=row_bytes) for load in loads]
    return sum(cost.total_us for cost in costs) / 1e6


def _linked(cluster: Cluster, host_gb_per_s: float) -> Cluster:
    """The cluster with a host's link as what its ranks share; no rank is slower by itself, and nothing has latency."""
    up = ScaleUp(domain=cluster.gpus_per_node, topology="switch", gb_per_s=INSIDE_GB_PER_S, latency_us=0.0)
    out = ScaleOut(gb_per_s=host_gb_per_s, node_gb_per_s=host_gb_per_s, latency_us=0.0)
    return cluster.model_copy(
        update={"hardware": cluster.hardware.model_copy(update={"scale_up": up, "scale_out": out})}
    )
