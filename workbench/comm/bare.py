"""The bare exchange of ``scope: all_to_all``: buffers of a size, no model, no routing, no counts sent ahead.

``bytes_per_rank`` S is the send buffer of one rank in bf16, over all R ranks and itself, as nccl-tests counts it. It is
cut into rows of equal size, cut down to whole bytes, and each row has one destination; the strategy is handed the rows
as tokens of one choice each, so nothing is deduplicated. ``dispatch.dispatch_dtype`` encodes the rows: the same numbers
in fewer bytes, scales of every row among them. Only the way out is exchanged.

Even (``workload.skew`` uniform or balanced): a block of S / R bytes to every rank, one row each; strategy flat is then
what nccl-tests measures. Otherwise every rank's block for rank d is in proportion to the load that the skew gives to
d, were each rank the home of a single expert and a token sent to one of them: hot_rank {factor: 4} makes one block four
times the others. Blocks are whole rows by largest remainders, so they add up to the same buffer. All senders have the
same blocks; totals sent stay even, and totals received are in proportion to the load.
"""

from dataclasses import dataclass, replace

import numpy as np

from workbench.comm.payload import encoded_bytes, payload_bytes
from workbench.comm.plan import DispatchPlan
from workbench.comm.strategies import build_plan
from workbench.comm.strategies.low_latency import MOST_TOKENS
from workbench.spec.errors import Unsupported
from workbench.spec.scenario import AllToAllScope, Cell
from workbench.workload.skew import SKEWS, Crowd, popularity

EVEN_SKEWS = ("uniform", "balanced")
SMALLEST_ROW = 256
"""Bytes of a row of uneven blocks, where the buffer has as many for every rank: two scale blocks of 128 bf16."""
MOST_ROWS = 4096
MOST_ROWS_OF_ALL = 2**19
MESSAGE_BYTES = 16 * 2**10
"""A message of low_latency is a token: 8192 numbers in bf16."""
BF16_BYTES = 2


@dataclass(frozen=True)
class BareRows:
    """How the buffer of every rank is cut: ``blocks_R`` rows for each destination, each of ``raw_bytes``."""

    blocks_R: np.ndarray
    raw_bytes: int
    dtype: str

    @property
    def num_rows(self) -> int:
        return int(self.blocks_R.sum())

    @property
    def hidden(self) -> int:
        """Numbers of a row, where it is encoded."""
        return self.raw_bytes // BF16_BYTES

    @property
    def is_encoded(self) -> bool:
        return self.dtype != "bf16"

    @property
    def row_bytes(self) -> int:
        """Bytes of a row on the wire."""
        return encoded_bytes(self.hidden, self.dtype) if self.is_encoded else self.raw_bytes

    @property
    def payload_bytes(self) -> int:
        """Those of ``row_bytes`` that are data and block scales."""
        return payload_bytes(self.hidden, self.dtype) if self.is_encoded else self.raw_bytes


def bare_plan(cell: Cell) -> tuple[DispatchPlan, int]:
    """The plan of the cell's bare exchange and the bytes of its rows on the wire; see the module for what is sent.

    Counts are known beforehand and no metadata rides along. Raises Unsupported, naming the field, for a strategy, a
    skew or a size that has no bare exchange.
    """
    rows = bare_rows(cell)
    ranks = cell.ep
    destination_n = np.repeat(np.arange(ranks, dtype=np.int32), rows.blocks_R)
    slots = np.broadcast_to(destination_n[None, :, None], (ranks, rows.num_rows, 1))
    free = cell.model_copy(update={"model": None})
    weights, tokens_R = np.ones(slots.shape, np.float32), (rows.num_rows,) * ranks
    plan = build_plan(free, slots, weights, slots_per_rank=1, tokens_R=tokens_R)
    hops = tuple(replace(hop, announced=True) for hop in plan.hops)
    return replace(plan, hops=hops, carried=None), rows.row_bytes


def bare_rows(cell: Cell) -> BareRows:
    """How the cell's buffers are cut. Raises Unsupported as ``bare_plan``."""
    scope, ranks, strategy = cell.scope, cell.ep, cell.dispatch.strategy
    assert isinstance(scope, AllToAllScope)
    if strategy == "none":
        raise Unsupported("dispatch.strategy: none sends nothing, so there is no bare exchange; take another")
    if scope.bytes_per_rank < ranks:
        raise Unsupported(f"scope.bytes_per_rank: {scope.bytes_per_rank} bytes give {ranks} ranks less than one each")
    shares_R = rank_shares(cell)
    rows = BareRows(_blocks(scope.bytes_per_rank, shares_R, strategy=strategy), 0, cell.dispatch.dispatch_dtype)
    rows = replace(rows, raw_bytes=scope.bytes_per_rank // rows.num_rows)
    if strategy == "low_latency" and rows.num_rows > MOST_TOKENS:
        raise Unsupported(
            f"dispatch.strategy: low_latency has static buffers for {MOST_TOKENS} tokens a rank, and"
            f" scope.bytes_per_rank {scope.bytes_per_rank} is {rows.num_rows} of {rows.raw_bytes} bytes"
        )
    if rows.is_encoded and not rows.hidden:
        raise Unsupported(
            f"scope.bytes_per_rank: {scope.bytes_per_rank} bytes are less than one bf16 number for each of {ranks}"
            f" ranks, so there is nothing to encode as dispatch.dispatch_dtype {rows.dtype}"
        )
    return rows


def rank_shares(cell: Cell) -> np.ndarray:
    """Part of every rank's buffer that goes to each rank, float64 [R], adding up to 1."""
    skew, ranks, workload = cell.workload.skew, cell.ep, cell.workload
    if skew.kind in EVEN_SKEWS:
        return np.full(ranks, 1 / ranks)
    if skew.kind not in SKEWS or skew.kind == "trace":
        known = ", ".join((*EVEN_SKEWS, *(kind for kind in SKEWS if kind not in (*EVEN_SKEWS, "trace"))))
        raise Unsupported(
            f"workload.skew: {skew.kind} speaks of tokens or experts, and a bare all_to_all has none; known: {known}"
        )
    crowd = Crowd(
        num_experts=ranks, top_k=1, num_ranks=ranks, num_tokens=workload.tokens_per_rank * ranks, seed=workload.seed,
        layer=0, step=0,
    )  # fmt: skip
    shares_R = np.exp(popularity(skew, crowd).astype(np.float64))
    return shares_R / shares_R.sum()


def _blocks(num_bytes: int, shares_R: np.ndarray, *, strategy: str) -> np.ndarray:
    """Rows for each rank, int64 [R]: by largest remainders of the shares."""
    ranks, even = shares_R.size, bool((shares_R == shares_R[0]).all())
    if strategy == "low_latency":
        num_rows = ranks * -(-num_bytes // (ranks * MESSAGE_BYTES))
    elif even:
        num_rows = ranks
    else:
        num_rows = max(ranks, min(num_bytes // SMALLEST_ROW, MOST_ROWS, MOST_ROWS_OF_ALL // ranks))
    wanted_R = shares_R * num_rows
    blocks_R = np.floor(wanted_R + 1e-9).astype(np.int64)
    missing = num_rows - int(blocks_R.sum())
    blocks_R[np.argsort(blocks_R - wanted_R, kind="stable")[:missing]] += 1
    return blocks_R
