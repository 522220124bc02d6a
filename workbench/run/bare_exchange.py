"""The bare exchange of one rank: what it sends, hop by hop, and the check of every byte that arrives.

R ranks, n rows of a rank's buffer, B bytes of a row as handed over.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.comm.bare import BareRows, bare_plan, bare_rows
from workbench.comm.hop import PADDING
from workbench.comm.oracle import origins
from workbench.comm.payload import decode_rows, encode_rows
from workbench.comm.plan import DispatchPlan
from workbench.comm.rank_plan import RankHop, prepare_rank
from workbench.run.check import CheckFailed
from workbench.run.context import RankContext
from workbench.run.exchange import Stage
from workbench.run.legs import Passage
from workbench.spec.scenario import Cell

CHECKED_BYTES = 16 * 2**20
"""Rows are compared in parts of about this size."""


def row_source(rows: BareRows, *, num_ranks: int, seed: int) -> Callable[[np.ndarray, np.ndarray], Tensor]:
    """Rows by source rank and number, int64 [m] each, to uint8 [m, B] before encoding: the same on every rank.

    Row t of rank r is a window of one line of random values, shifted by r * n + t, so every row differs from every
    other and any rank can make any of them. Bytes are random; where rows are encoded they are standard normal bf16.
    """
    generator = np.random.Generator(np.random.SFC64([seed, rows.num_rows, rows.raw_bytes]))
    width = rows.hidden if rows.is_encoded else rows.raw_bytes
    length = width + num_ranks * rows.num_rows
    if rows.is_encoded:
        line = torch.from_numpy(generator.standard_normal(length, dtype=np.float32)).to(torch.bfloat16)
    else:
        line = torch.frombuffer(bytearray(generator.bytes(length)), dtype=torch.uint8)
    windows = line.unfold(0, width, 1)

    def take(ranks: np.ndarray, numbers: np.ndarray) -> Tensor:
        return windows[torch.from_numpy(ranks * rows.num_rows + numbers)]

    return take


class BareExchange:
    """One rank's buffer over its plan; ``stages`` encode where that is asked, and send hop by hop."""

    def __init__(self, cell: Cell, context: RankContext, plan: DispatchPlan, rows: BareRows):
        self._rows, self._plan, self._transport = rows, plan, context.transport
        self._device, self._rank = context.device, context.rank
        self._mine = prepare_rank(plan, rank=context.rank, device=context.device)
        self._take = row_source(rows, num_ranks=context.world, seed=cell.workload.seed)
        numbers = np.arange(rows.num_rows)
        self._sent = self._take(np.full(numbers.size, context.rank), numbers).to(context.device)
        self.buffer = self.values = self._sent
        self.passage = Passage("dispatch", plan, self._mine, rows.row_bytes, rows.payload_bytes)

    @property
    def fields(self) -> dict[str, Any]:
        """What a report says of it; ``activation_bytes`` are the buffer, or what is received if that is more."""
        rows = self._rows
        most = max(rows.num_rows, int(rows.blocks_R[self._rank]) * rows.blocks_R.size)
        return {
            "activation_bytes": most * rows.row_bytes,
            "logical_bytes": rows.num_rows * rows.payload_bytes,
        }

    def stages(self) -> list[Stage]:
        """Encode, a stage for every hop, decode. A hop of rows that lie in their order already picks none."""
        first, *later = self._mine.hops
        steps: list[Stage] = [("quantise", self._encode)] if self._rows.is_encoded else []
        steps.append(("dispatch", partial(self._send_first, first, is_in_order(first))))
        steps += [("dispatch", partial(self._send_on, hop)) for hop in later]
        return [*steps, ("quantise", self._decode)] if self._rows.is_encoded else steps

    def _encode(self) -> None:
        self._encoded = encode_rows(self._sent, self._rows.dtype)

    def _send_first(self, hop: RankHop, in_order: bool) -> None:
        rows = self._encoded if self._rows.is_encoded else self._sent
        self.buffer = self._transport.carry(rows if in_order else hop.pick(rows), hop)

    def _send_on(self, hop: RankHop) -> None:
        self.buffer = self._transport.carry(hop.pick(self.buffer), hop)

    def _decode(self) -> None:
        self.values = decode_rows(self.buffer, self._rows.hidden, self._rows.dtype)

    def check(self) -> None:
        """Compares every byte of the last buffer. Raises CheckFailed naming the rank that a wrong row is from."""
        source, token, _ = origins(self._plan, self._rank)
        got = self.buffer.cpu()
        if got.shape != (source.size, self._rows.row_bytes):
            raise CheckFailed(f"{tuple(got.shape)} bytes arrived instead of {(source.size, self._rows.row_bytes)}")
        step = max(1, CHECKED_BYTES // self._rows.row_bytes)
        for at in range(0, source.size, step):
            part = slice(at, at + step)
            wrong = (got[part] != self._expected(source[part], token[part])).any(dim=1).nonzero()
            if wrong.numel():
                row = at + int(wrong[0])
                raise CheckFailed(f"row {token[row]} of the block of rank {source[row]} arrived wrong")

    def _expected(self, source: np.ndarray, token: np.ndarray) -> Tensor:
        rows = self._take(source, np.maximum(token, 0))
        if self._rows.is_encoded:
            rows = encode_rows(rows.to(self._device), self._rows.dtype).cpu()
        return rows.masked_fill_(torch.from_numpy(token == PADDING)[:, None], 0)


def is_in_order(hop: RankHop) -> bool:
    """Whether the hop hands over the buffer as it lies."""
    whole = hop.padding is None and len(hop.send_rows) == hop.num_rows
    return whole and bool((hop.send_rows.cpu() == torch.arange(hop.num_rows)).all())


def prepare_bare(cell: Cell, context: RankContext) -> BareExchange:
    """This rank's part of the cell. Raises Unsupported as ``bare_plan``."""
    plan, _ = bare_plan(cell)
    return BareExchange(cell, context, plan, bare_rows(cell))
