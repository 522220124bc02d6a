"""All that a cell's traffic depends on, so that cells which agree in it share it. R ranks of the EP group."""

from dataclasses import dataclass

import numpy as np

from workbench.spec.errors import Unsupported
from workbench.spec.router import ExpertChoice, Router
from workbench.spec.scenario import Cell
from workbench.spec.workload import Lognormal, PowerLaw, Skew, Sources
from workbench.workload.grouped import limits_groups
from workbench.workload.logits import Batch
from workbench.workload.skew import Crowd
from workbench.workload.sources import source_tokens, spread_tokens
from workbench.workload.steer import STEERED, Steer

_LIMITED = ("switch", "batch_prioritized", "expert_choice")
"""Routers that drop or choose by all tokens of a rank, so that a part of them routes differently."""
_MAX_LIMITED_LOGITS = 1 << 24


@dataclass(frozen=True)
class Source:
    """The crowd, its tokens and the router they meet.

    Of a rank with all ``tokens`` the first ``rows`` are routed and ``kept`` of them told, of others in proportion; with
    fewer ``routed_ranks`` than ranks, others tell other tokens of the same ones.
    """

    crowd: Crowd
    sources: Sources
    skew: Skew
    router: Router
    capacity: float | None
    tokens: int
    rows: int
    kept: int
    routed_ranks: int
    steer: Steer | None = None

    def share_R(self, rows: int) -> np.ndarray:
        """int64 [R]: tokens of every rank when one with all its ``tokens`` has ``rows``; none is rounded to 0."""
        crowd = self.crowd
        return spread_tokens(self.sources, num_ranks=crowd.num_ranks, tokens=self.tokens, seed=crowd.seed, told=rows)

    def batch(self, rank: int) -> Batch:
        """Tokens routed of a rank: as many as the longest of those that share its routing needs."""
        routed_R = self.share_R(self.rows)
        return Batch(
            router=self.router,
            rank=rank,
            rows=int(routed_R[rank % self.routed_ranks :: self.routed_ranks].max()),
            first=int(routed_R[:rank].sum()),
            start=int(self.share_R(self.tokens)[:rank].sum()),
        )

    @property
    def width(self) -> int:
        if not isinstance(self.router, ExpertChoice):
            return self.crowd.top_k
        return min(self.crowd.num_experts, self.router.max_experts or self.crowd.num_experts)


def cell_router(cell: Cell) -> Router:
    """The router of a cell, with ``model`` resolved to the model's own gate."""
    if cell.model is None:
        raise ValueError(f"scope {cell.scope.kind}: a cell without a model has no router")
    return cell.model.router if cell.router.kind == "model" else cell.router


def skew_flags(cell: Cell) -> list[str]:
    """``loads_bent_by_groups`` where the router leaves out groups of experts, and the skew names loads without them."""
    if cell.model is None:
        return []
    skew = cell.workload.skew
    named = isinstance(skew, PowerLaw) or (isinstance(skew, Lognormal) and skew.max_over_mean is not None)
    return ["loads_bent_by_groups"] if named and limits_groups(cell_router(cell)) else []


def source_of(
    cell: Cell, layer: int, step: int, *, max_tokens: int | None = None, steer: Steer | None = None
) -> Source:
    """The source of a cell's traffic in one layer and step. Raises Unsupported for a router that ``steer`` cannot
    steer."""
    router = cell_router(cell)
    if steer is not None and router.kind not in STEERED:
        known = ", ".join(STEERED)
        raise Unsupported(f"balance.training: router {router.kind} cannot be steered; known: {known}")
    tokens = cell.workload.tokens_per_rank
    crowd = Crowd(
        num_experts=cell.model.num_experts,
        top_k=cell.model.top_k,
        num_ranks=cell.ep,
        num_tokens=int(source_tokens(cell).sum()),
        seed=cell.workload.seed,
        layer=layer,
        step=step,
        gate=cell.model.router if limits_groups(cell.model.router) else None,
        trace_digest=cell.trace_digest,
    )
    capacity = cell.balance.capacity or None  # factor 0 drops nothing, as none
    kept = tokens if max_tokens is None else min(tokens, max_tokens)
    rows, routed_ranks = kept, cell.ep
    if kept < tokens and (capacity is not None or router.kind in _LIMITED):
        rows = tokens
        routed_ranks = max(1, min(cell.ep, _MAX_LIMITED_LOGITS // (tokens * crowd.num_experts)))
    workload = cell.workload
    return Source(crowd, workload.sources, workload.skew, router, capacity, tokens, rows, kept, routed_ranks, steer)
