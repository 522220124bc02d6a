"""A cell's tokens in chunks, and the plan of each.

R ranks, T tokens a rank, K top-k. Every rank splits its own tokens into as many chunks as the others, so the number of
messages is the same on all of them whatever they have to send.
"""

from dataclasses import dataclass

import numpy as np

from workbench.balance.placement import ExpertMap, to_slots
from workbench.comm.plan import DispatchPlan
from workbench.comm.rank_plan import RankPlan, prepare_rank
from workbench.comm.strategies import make_plan
from workbench.run.context import RankContext
from workbench.spec.dispatch import ChunkOverlap
from workbench.spec.scenario import Cell
from workbench.workload.overlap import require_overlap
from workbench.workload.traffic import RoutedTraffic

__all__ = ["Chunk", "chunk_flags", "is_chunked", "make_chunks", "num_chunks", "require_overlap"]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Tokens ``starts_R[r]`` to ``ends_R[r]`` of every rank r, and how they travel."""

    starts_R: np.ndarray
    ends_R: np.ndarray
    plan: DispatchPlan
    rank_plan: RankPlan

    def rows(self, rank: int) -> slice:
        """The chunk's tokens among those of a rank."""
        return slice(int(self.starts_R[rank]), int(self.ends_R[rank]))

    def take(self, array_RTK: np.ndarray, *, fill: int) -> np.ndarray:
        """The chunk's part of a table of all tokens; ranks with fewer rows than others are filled up."""
        return _take(array_RTK, self.starts_R, self.ends_R, fill)


def is_chunked(cell: Cell) -> bool:
    """Whether the cell asks for messages beside computation."""
    return cell.dispatch.overlap.kind != "none" or cell.dispatch.shared_expert_overlap


def num_chunks(cell: Cell, tokens_R: np.ndarray) -> int:
    """Chunks of the cell: the degree, but no more than the fullest rank has tokens, and one at least."""
    overlap = cell.dispatch.overlap
    asked = overlap.degree if isinstance(overlap, ChunkOverlap) else 2 if overlap.kind == "two_batch" else 1
    return max(1, min(asked, int(max(tokens_R, default=0))))


def chunk_flags(cell: Cell, tokens_R: np.ndarray) -> list[str]:
    """``overlap_chunks=2`` for a cell whose ranks have too few tokens for the chunks that it asks for."""
    overlap, count = cell.dispatch.overlap, num_chunks(cell, tokens_R)
    fewer = isinstance(overlap, ChunkOverlap) and count < overlap.degree
    return [f"overlap_chunks={count}"] if fewer else []


def make_chunks(
    cell: Cell, context: RankContext, traffic: RoutedTraffic, expert_map: ExpertMap, *, count: int
) -> tuple[Chunk, ...]:
    """The tokens in ``count`` chunks of equal size to within one token, each with its plan.

    Replicas are dealt over all tokens before they are split, so every pair goes where it goes without chunks.
    """
    slots_RTK, chunks = to_slots(expert_map, traffic.ids), []
    for number in range(count):
        starts_R, ends_R = (traffic.tokens_R * turn // count for turn in (number, number + 1))
        filled = ((traffic.ids, -1), (traffic.weights, 0), (slots_RTK, -1))
        ids, weights, slots = (_take(array, starts_R, ends_R, fill) for array, fill in filled)
        part = RoutedTraffic(ids, weights, traffic.chosen_by_experts, ends_R - starts_R)
        plan = make_plan(cell, part, expert_map, slots=slots)
        chunks.append(Chunk(starts_R, ends_R, plan, prepare_rank(plan, rank=context.rank, device=context.device)))
    return tuple(chunks)


def _take(array_RTK: np.ndarray, starts_R: np.ndarray, ends_R: np.ndarray, fill: int) -> np.ndarray:
    """Each rank's rows from its start to its end, moved to the front; as many rows as the longest has."""
    num_ranks, _, width = array_RTK.shape
    taken = np.full((num_ranks, int((ends_R - starts_R).max(initial=0)), width), fill, array_RTK.dtype)
    for rank, (start, end) in enumerate(zip(starts_R.tolist(), ends_R.tolist(), strict=True)):
        taken[rank, : end - start] = array_RTK[rank, start:end]
    return taken
