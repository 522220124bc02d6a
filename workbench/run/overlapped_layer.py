"""One rank's MoE layer with its messages hidden: chunks of its tokens, two micro-batches, or the shared expert beside.

- chunk: one gate, then the chunks' dispatch, experts and combine in a pipeline; the shared expert after them.
- two_batch: each half of the tokens through a gate, dispatch, experts, combine and shared expert of its own, in turn.
- shared_expert_overlap: the shared expert is computed while the first messages travel; with no other overlap the tokens
  are one chunk.
"""

from dataclasses import replace

import torch

from workbench.run.exchange import Chunked
from workbench.run.layer import LayerRun, RankLayer, Stage
from workbench.run.overlap import Lane, in_turn, overlapped, run_stages
from workbench.spec.scenario import Cell


def layer_run(cell: Cell, layer: RankLayer) -> "LayerRun | OverlappedRun":
    """A pass over the layer as the cell's ``dispatch`` overlaps it."""
    if not isinstance(layer.exchange, Chunked):
        return LayerRun(layer)
    dispatch = cell.dispatch
    return OverlappedRun(
        layer, two_batch=dispatch.overlap.kind == "two_batch", shared_beside=dispatch.shared_expert_overlap
    )


class OverlappedRun:
    """One pass in the pipeline; ``stages`` are the same without overlap, so what they add up to beyond it was hidden.

    Chunks add a token's rows in the order in which the whole layer adds them, so the output is bit for bit that of
    ``LayerRun`` wherever an expert's row does not depend on the rows beside it: products whose kernel is chosen by the
    number of rows, and scales of a whole tensor, make it differ within the format's tolerance.
    """

    def __init__(self, layer: RankLayer, *, two_batch: bool, shared_beside: bool):
        assert isinstance(layer.exchange, Chunked)
        self.layer, self._two_batch, self._shared_beside = layer, two_batch, shared_beside
        self._whole = LayerRun(layer)
        self._parts = [LayerRun(part) for part in _parts_of(layer, own_gate=two_batch)]
        self._lane = Lane(layer.x_TH.device)
        self.y_TH = self.shared_TH = layer.x_TH

    def __call__(self) -> None:
        run_stages(self._head())
        overlapped(self._pipeline(), self._lane, beside=self._beside())
        run_stages(self._tail())

    def stages(self) -> list[Stage]:
        """Stages of the pipeline in its order, for one thread; names repeat for every part."""
        return [*self._head(), *in_turn(self._pipeline(), beside=self._beside()), *self._tail()]

    def traced_stages(self) -> list[Stage]:
        """What a profile shows: the pipeline as one stage, with those of its parts inside."""

        def pipeline() -> None:
            overlapped(self._pipeline(), self._lane, beside=self._beside(), spans=True)

        return [*self._head(), ("pipeline", pipeline), *self._tail()]

    def _head(self) -> list[Stage]:
        return [] if self._two_batch else self._whole.gate_stages()

    def _pipeline(self) -> list[list[Stage]]:
        if not self._two_batch:
            return [part.routed_stages() for part in self._parts]
        return [
            [*part.gate_stages(), *part.routed_stages(), *([] if self._shared_beside else part.shared_stages())]
            for part in self._parts
        ]

    def _beside(self) -> list[Stage]:
        if not self._shared_beside:
            return []
        shared = self._parts if self._two_batch else [self._whole]
        return [stage for part in shared for stage in part.shared_stages()]

    def _tail(self) -> list[Stage]:
        late = [] if self._two_batch or self._shared_beside else self._whole.shared_stages()
        return [*late, ("finish", self._finish)]

    def _finish(self) -> None:
        y_TH = self.layer.exchange.combined()
        if self.layer.shared is not None:
            halves = [part.shared_TH for part in self._parts]
            self.shared_TH = torch.cat(halves) if self._two_batch else self._whole.shared_TH
        self.y_TH = y_TH + self.shared_TH if self.layer.adds_shared else y_TH


def _parts_of(layer: RankLayer, *, own_gate: bool) -> list[RankLayer]:
    """The layer of each chunk's tokens; with ``own_gate`` a micro-batch with gate and shared expert."""
    exchange = layer.exchange
    assert isinstance(exchange, Chunked)
    return [
        replace(
            layer,
            x_TH=layer.x_TH[rows],
            logits_TE=layer.logits_TE[rows],
            route=layer.route if own_gate else None,
            exchange=part,
            shared=layer.shared if own_gate else None,
            adds_shared=False,
        )
        for part, rows in zip(exchange.parts, exchange.rows, strict=True)
    ]
