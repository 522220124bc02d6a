"""How tokens reach a rank's experts and come back: over a dispatch plan, or not at all.

T tokens, H hidden, B rows of the buffer after dispatch, C (slot, weight) columns of a buffer row.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from workbench.comm.execute import combine, dispatch, received_ids
from workbench.comm.payload import decode_rows, encode_rows
from workbench.comm.rank_plan import RankPlan
from workbench.comm.transport import TorchTransport
from workbench.spec.dispatch import Dispatch

Stage = tuple[str, Callable[[], None]]


class Exchange(Protocol):
    """Stages before and after the experts; results are read once their stages have run."""

    def dispatch_stages(self, tokens: Callable[[], Tensor]) -> list[Stage]:
        """From ``tokens`` [T, H] to the buffer that ``received`` gives."""

    def received(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows [B, H], local slots int32 [B, C] (-1 = none), weights float32 [B, C]."""

    def combine_stages(self, rows: Callable[[], Tensor]) -> list[Stage]:
        """From per-row sums [B, H] to the tokens that ``combined`` gives."""

    def combined(self) -> Tensor:
        """Tokens [T, H], or the buffer's rows where nothing travels."""


class Staying:
    """No exchange: the rows are at their experts already."""

    def __init__(self, rows_BH: Tensor, ids_BC: Tensor, weights_BC: Tensor):
        self._received = rows_BH, ids_BC, weights_BC
        self._rows: Callable[[], Tensor] = lambda: rows_BH

    def dispatch_stages(self, tokens: Callable[[], Tensor]) -> list[Stage]:
        return []

    def received(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._received

    def combine_stages(self, rows: Callable[[], Tensor]) -> list[Stage]:
        self._rows = rows
        return []

    def combined(self) -> Tensor:
        return self._rows()


class Planned:
    """The exchange of a dispatch plan; ``buffer`` keeps the bytes that arrived, for the check."""

    def __init__(self, plan: RankPlan, transport: TorchTransport, dtypes: Dispatch, *, hidden: int):
        self._plan, self._transport, self._dtypes, self._hidden = plan, transport, dtypes, hidden
        self.buffer = torch.empty(0, 0, dtype=torch.uint8)

    def dispatch_stages(self, tokens: Callable[[], Tensor]) -> list[Stage]:
        def encode() -> None:
            self._sent = encode_rows(tokens(), self._dtypes.dispatch_dtype)

        def send() -> None:
            self.buffer = dispatch(self._plan, self._transport, self._sent)

        def decode() -> None:
            self._rows = decode_rows(self.buffer, self._hidden, self._dtypes.dispatch_dtype)
            self._ids, self._weights = received_ids(self._plan, self.buffer)

        return [("quantise", encode), ("dispatch", send), ("quantise", decode)]

    def received(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._rows, self._ids, self._weights

    def combine_stages(self, rows: Callable[[], Tensor]) -> list[Stage]:
        def send_back() -> None:
            self._combined = self.combine(rows())

        return [("combine", send_back)]

    def combine(self, rows_BH: Tensor) -> Tensor:
        """Per-row sums back to the tokens, bf16 [T, H]."""
        sums_TH = combine(self._plan, self._transport, rows_BH, dtype=self._dtypes.combine_dtype)
        return sums_TH.to(torch.bfloat16)

    def combined(self) -> Tensor:
        return self._combined


class Chunked:
    """Several exchanges, each of some of the rank's tokens: ``parts`` by chunk, ``rows`` the tokens of each, in order.

    As one exchange it runs them one after the other; ``run.overlap`` takes the parts by themselves.
    """

    def __init__(self, parts: Sequence[Planned | Staying], rows: Sequence[slice]):
        self.parts, self.rows = tuple(parts), tuple(rows)

    def dispatch_stages(self, tokens: Callable[[], Tensor]) -> list[Stage]:
        stages: list[Stage] = []
        for part, rows in zip(self.parts, self.rows, strict=True):
            stages += part.dispatch_stages(lambda rows=rows: tokens()[rows])
        return stages

    def received(self) -> tuple[Tensor, Tensor, Tensor]:
        received = [part.received() for part in self.parts]
        columns = max(ids.shape[1] for _, ids, _ in received)
        ids = [pad(ids_BC, (0, columns - ids_BC.shape[1]), value=-1) for _, ids_BC, _ in received]
        weights = [pad(weights_BC, (0, columns - weights_BC.shape[1])) for _, _, weights_BC in received]
        return torch.cat([rows for rows, _, _ in received]), torch.cat(ids), torch.cat(weights)

    def combine_stages(self, rows: Callable[[], Tensor]) -> list[Stage]:
        stages: list[Stage] = []
        for number, part in enumerate(self.parts):
            stages += part.combine_stages(lambda number=number: self._rows_of(rows(), number))
        return stages

    def _rows_of(self, rows_BH: Tensor, number: int) -> Tensor:
        return rows_BH.split([len(part.received()[0]) for part in self.parts])[number]

    def combined(self) -> Tensor:
        return torch.cat([part.combined() for part in self.parts])
