"""Whether all ranks of a cell route alike: each makes the routing of everyone from the seed, and nothing tells it."""

import hashlib
from collections import Counter
from collections.abc import Iterable

import numpy as np

from workbench.balance.placement import ExpertMap, to_slots
from workbench.comm.execute import DispatchMismatch
from workbench.comm.plan import DispatchPlan
from workbench.run.context import RankContext
from workbench.workload.traffic import RoutedTraffic

DIGEST_HEX = 12
"""48 bits: a float64 holds them, and it is float64 that ranks gather."""


def require_same_routing(context: RankContext, digest: str) -> None:
    """Raises DispatchMismatch on the ranks whose digest is not that of most ranks, on all where there is no such.

    All ranks must call it, and must go on only together (``RankContext.agreed``).
    """
    gathered = context.gather([float(int(digest, 16))])[:, 0]
    (common, most), *_ = Counter(gathered.tolist()).most_common()
    alike = gathered == common
    if 2 * most <= len(gathered) and not alike.all():
        alike = np.zeros(len(gathered), bool)
    if alike[context.rank]:
        return
    others = np.flatnonzero(gathered != gathered[context.rank]).tolist()
    raise DispatchMismatch(
        f"its routing is not that of ranks {others} (digest {digest}, theirs"
        f" {', '.join(sorted({f'{int(gathered[other]):0{DIGEST_HEX}x}' for other in others}))});"
        " a seed must give the same routing on every rank"
    )


def routing_digest(traffic: RoutedTraffic, expert_map: ExpertMap) -> str:
    """Of the experts, weights and number of every token of all ranks, and of the slots that they go to."""
    slots = to_slots(expert_map, traffic.ids)
    return _digest([traffic.ids, traffic.weights, traffic.tokens_R, expert_map.slots, slots])


def plan_digest(plan: DispatchPlan) -> str:
    """Of the rows that every rank sends to every other in each hop: what a bare exchange has for routing."""
    return _digest(hop.send_counts for hop in plan.hops)


def _digest(arrays: Iterable[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:DIGEST_HEX]
