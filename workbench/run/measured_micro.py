"""The microbenchmark scopes measured: a bare exchange, a grouped GEMM, an encoding. Each checks what it made.

R ranks, G groups, M rows over all groups, N output columns, K reduced.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.formats import FORMATS
from kernels.grouped_gemm import grouped_gemm
from kernels.moe import math_path
from workbench.measure.cache import cache_flusher
from workbench.measure.clock import Clock
from workbench.measure.gate import Deviation, deviation, error_limit
from workbench.run.check import CheckFailed
from workbench.run.context import RankContext
from workbench.run.graph import capture
from workbench.run.prepare import backend_of, recipe_of
from workbench.run.report import RankReport
from workbench.run.sampling import Sampler
from workbench.run.trace import trace_of
from workbench.spec.errors import Unsupported
from workbench.spec.scenario import AllToAllScope, Cell, GroupedGemmScope, QuantizeScope

MAX_CHECKED_ROWS = 256


@dataclass(frozen=True)
class Micro:
    """A step, the check of its last result, and what it moves; ``check`` raises CheckFailed."""

    step: Callable[[], None]
    check: Callable[[], Deviation | None]
    stage: str
    fields: dict[str, Any]


def measure_micro(cell: Cell, context: RankContext, *, clock: Clock, started: float) -> RankReport:
    """This rank's part of a microbenchmark cell."""
    micro = context.agreed(lambda: _BUILDERS[cell.scope.kind](cell, context))
    context.synchronize()
    prepare_us = (time.monotonic() - started) * 1e6
    context.start_peak_memory()
    flush = cache_flusher(context.device, mode=cell.measure.cache, sharers=context.world)
    sampler = Sampler(context, clock, flush, cell.measure)
    first_call_us = sampler.timed(micro.step)
    graphed = capture(micro.step, context) if cell.measure.graph else None
    context.transport.reset()
    samples = sampler.sample(graphed or micro.step)
    context.transport.reset()
    last_us = sampler.timed(micro.step)
    counters = context.transport.reset()
    result = micro.check()
    return RankReport(
        rank=context.rank,
        samples_us=samples.times_us,
        first_call_us=first_call_us,
        prepare_us=prepare_us,
        stages=((micro.stage, last_us),),
        staging_us=counters.staging_s * 1e6,
        wire={
            "self": counters.self_bytes,
            "scale_up": counters.scale_up_bytes,
            "scale_out": counters.scale_out_bytes,
        },
        rel_error=result.rel_error if result else None,
        sqnr_db=result.sqnr_db if result else None,
        timer=clock.timer,
        graph=graphed is not None,
        peak_memory_bytes=context.peak_memory_bytes(),
        hardware_name=context.hardware_name,
        trace=trace_of(context, lambda: [(micro.stage, micro.step)]),
        **micro.fields,
    )


def _random_bytes(rank: int, shape: tuple[int, int], *, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed * 65_537 + rank)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def _all_to_all(cell: Cell, context: RankContext) -> Micro:
    """Equal blocks to every rank, cut down to a whole number of bytes a block."""
    scope = cell.scope
    assert isinstance(scope, AllToAllScope)
    if cell.dispatch.strategy != "flat":
        raise Unsupported(f"dispatch.strategy: {cell.dispatch.strategy} has no bare exchange; known: flat")
    world, seed = context.world, cell.workload.seed
    block = scope.bytes_per_rank // world
    if not block:
        raise Unsupported(f"scope.bytes_per_rank: {scope.bytes_per_rank} bytes give {world} ranks less than one each")
    sent = _random_bytes(context.rank, (world, block), seed=seed).to(context.device)
    received = sent

    def step() -> None:
        nonlocal received
        received = context.transport.exchange_rows(sent)

    def check() -> None:
        expected = torch.stack([_random_bytes(peer, (world, block), seed=seed)[context.rank] for peer in range(world)])
        wrong = (received.cpu() != expected).any(dim=1).nonzero()
        if wrong.numel():
            raise CheckFailed(f"the block of rank {int(wrong[0])} arrived wrong")

    return Micro(step, check, "dispatch", {"activation_bytes": block * world})


def _grouped_gemm(cell: Cell, context: RankContext) -> Micro:
    """Rows spread over the groups as evenly as they divide; standard normal inputs, weights scaled by 1 / sqrt(K)."""
    scope, recipe, device = cell.scope, recipe_of(cell.precision), context.device
    assert isinstance(scope, GroupedGemmScope)
    generator = torch.Generator(device=device).manual_seed(cell.workload.seed + 1)
    rows_MK = torch.randn(scope.m, scope.k, generator=generator, device=device).to(torch.bfloat16)
    raw = torch.randn(scope.groups, scope.n, scope.k, generator=generator, device=device) / scope.k**0.5
    weights_GNK = FORMATS[recipe.weights].encode(raw.to(torch.bfloat16), weights=True)
    ends = torch.arange(scope.groups + 1, device=device) * scope.m // scope.groups
    backend = backend_of(cell)
    product = rows_MK

    def step() -> None:
        nonlocal product
        product = grouped_gemm(rows_MK, ends, weights_GNK, activations_format=recipe.activations, backend=backend)

    def check() -> Deviation:
        picked = torch.linspace(0, scope.m - 1, min(scope.m, MAX_CHECKED_ROWS), device=device).round().long()
        group = torch.searchsorted(ends, picked, right=True) - 1
        expected = torch.empty(len(picked), scope.n, device=device)
        for index in group.unique().tolist():
            at = group == index
            expected[at] = rows_MK[picked[at]].float() @ raw[index].to(torch.bfloat16).float().T
        formats = [FORMATS[name].tolerance for name in (recipe.weights, recipe.activations)]
        return _within(product[picked], expected, error_limit(weights=formats[0], activations=formats[1]), "product")

    touched = int((ends.diff() > 0).sum())
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    path = math_path(recipe, device_type=device.type, capability=capability, backend=backend)
    fields = {
        "flops": 2 * scope.m * scope.n * scope.k,
        "touched_bytes": weights_GNK.nbytes * touched // scope.groups,
        "activation_bytes": 2 * scope.m * (scope.k + scope.n),
        "weight_bytes": weights_GNK.nbytes,
        "touched_experts": touched,
        "math_path": path,
    }
    return Micro(step, check, "gemm1", fields)


def _quantize(cell: Cell, context: RankContext) -> Micro:
    """Standard normal rows encoded into the precision's activation format."""
    scope, recipe, device = cell.scope, recipe_of(cell.precision), context.device
    assert isinstance(scope, QuantizeScope)
    if recipe.activations == "bf16":
        raise Unsupported(f"precision: {cell.precision.name} leaves activations in bf16, so there is nothing to encode")
    entry = FORMATS[recipe.activations]
    generator = torch.Generator(device=device).manual_seed(cell.workload.seed + 1)
    rows = torch.randn(scope.rows, scope.columns, generator=generator, device=device).to(torch.bfloat16)
    encoded = entry.encode(rows)

    def step() -> None:
        nonlocal encoded
        encoded = entry.encode(rows)

    def check() -> Deviation:
        return _within(entry.decode(encoded), rows, error_limit(weights=entry.tolerance, activations=0), "encoding")

    return Micro(step, check, "quantise", {"activation_bytes": rows.nbytes + encoded.nbytes})


def _within(actual: Tensor, expected: Tensor, limit: float, what: str) -> Deviation:
    result = deviation(actual, expected)
    if not result.rel_error <= limit:
        raise CheckFailed(
            f"{what} differs from the float32 reference by {result.rel_error:.3g}; {limit:.3g} is explained"
        )
    return result


_BUILDERS: dict[str, Callable[[Cell, RankContext], Micro]] = {
    "all_to_all": _all_to_all,
    "grouped_gemm": _grouped_gemm,
    "quantize": _quantize,
}
