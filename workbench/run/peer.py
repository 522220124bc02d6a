"""A cell's ``kernel`` that is another library: whether it can run the cell's layer, and the layer that calls it."""

import time
from dataclasses import dataclass, replace

import torch

from kernels.activation import Activation
from kernels.adapters import ADAPTERS, Adapter, LayerRequest, PeerBroken, math_path, refusal, version
from kernels.backend import capability_of
from workbench.balance.dynamics import judged_step, reached
from workbench.run.encoded import recipe_of
from workbench.run.prepare import Prepared
from workbench.spec.errors import Unsupported
from workbench.spec.scenario import Cell
from workbench.workload.traffic import cell_router, route_all

ONE_COLUMN = ("flat",)
"""Strategies whose buffer has one row a pair, so that no row has an expert elsewhere."""


@dataclass(frozen=True)
class Peer:
    """The library that runs a cell's experts, and what the cell asks of it."""

    adapter: Adapter
    request: LayerRequest

    @property
    def version(self) -> str:
        return version(self.adapter)

    @property
    def math_path(self) -> str:
        return math_path(self.request)


def find_peer(cell: Cell, device: torch.device) -> Peer | None:
    """The peer of the cell's kernel; None where our own kernels run it. Raises Unsupported with the reason.

    ``torch`` is torch's grouped products where they have the precision, and else our plain torch path.
    """
    if cell.kernel == "ours":
        return None
    if cell.kernel not in ADAPTERS:
        known = ", ".join(["ours", *ADAPTERS])
        raise Unsupported(f"kernel: {cell.kernel} has no adapter, so it cannot be measured; known: {known}")
    request, adapter = _request(cell), ADAPTERS[cell.kernel]
    reason = refusal(adapter, request, device_type=device.type, capability=capability_of(device))
    if reason is None:
        return Peer(adapter, request)
    if cell.kernel == "torch":
        return None
    raise Unsupported(f"kernel: {reason}")


def _request(cell: Cell) -> LayerRequest:
    model = cell.model
    assert model is not None
    drops = bool(route_all(cell, step=judged_step(cell), steer=reached(cell)).missing.any())
    elsewhere = cell.ep > 1 and (cell.parallel.ranks != "all" or cell.dispatch.strategy not in ONE_COLUMN)
    return LayerRequest(
        num_experts=(model.num_experts + int(cell.balance.placement.redundant_experts)) // cell.ep,
        hidden=model.hidden,
        intermediate=model.moe_intermediate,
        top_k=1 if cell.ep > 1 and not elsewhere else model.top_k,
        recipe=recipe_of(cell.precision),
        activation=Activation(**model.activation.model_dump()),
        has_bias=model.expert_bias,
        weight_on=getattr(cell_router(cell), "weight_on", "output"),
        has_dropped=drops or elsewhere,
    )


def with_peer(prepared: Prepared, peer: Peer) -> tuple[Prepared, float]:
    """The layer with the peer in the place of our expert stages, and the microseconds that its weights took to convert.

    Our own copy of the weights is let go: what stays of it says how large it was. Raises Unsupported where the peer is
    installed but broken.
    """
    layer, start = prepared.layer, time.monotonic()
    try:
        call = peer.adapter.prepare(layer.experts, peer.request)
    except PeerBroken as fault:
        raise Unsupported(f"kernel: {fault}; get it with: {peer.adapter.install}") from fault
    if layer.x_TH.is_cuda:
        torch.cuda.synchronize(layer.x_TH.device)
    converted_us = (time.monotonic() - start) * 1e6
    layer = replace(layer, peer=call, experts=layer.experts.to("meta"))
    return replace(prepared, layer=layer), converted_us
