"""The microbenchmark scopes measured: a bare exchange, a grouped GEMM, an encoding. Each checks what it made.

R ranks, G groups, M rows over all groups, N output columns, K reduced.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.formats import FORMATS
from kernels.grouped_gemm import grouped_gemm
from kernels.moe import math_path
from workbench.measure.clock import Clock
from workbench.measure.gate import Deviation, deviation, error_limit
from workbench.run.agreement import plan_digest, require_same_routing
from workbench.run.bare_exchange import prepare_bare
from workbench.run.check import CheckFailed
from workbench.run.context import RankContext
from workbench.run.encoded import recipe_of
from workbench.run.exchange import Stage
from workbench.run.legs import Passage
from workbench.run.measured_step import measured_step
from workbench.run.prepare import backend_of
from workbench.run.report import RankReport
from workbench.spec.errors import Unsupported
from workbench.spec.scenario import Cell, GroupedGemmScope, QuantizeScope

MAX_CHECKED_ROWS = 256


@dataclass(frozen=True)
class Micro:
    """A step and its stages, the check of its last result, and what it moves; ``check`` raises CheckFailed."""

    steps: tuple[Stage, ...]
    check: Callable[[], Deviation | None]
    fields: dict[str, Any]
    passages: tuple[Passage, ...] = ()

    def __call__(self) -> None:
        for _, step in self.steps:
            step()

    def stages(self) -> list[Stage]:
        """The steps by name, for a clock."""
        return list(self.steps)

    def traced_stages(self) -> list[Stage]:
        """The same, for a profile."""
        return self.stages()


def measure_micro(cell: Cell, context: RankContext, *, clock: Clock, started: float) -> RankReport:
    """This rank's part of a microbenchmark cell."""
    micro = context.agreed(lambda: _BUILDERS[cell.scope.kind](cell, context))
    for passage in micro.passages:
        digest = plan_digest(passage.plan)
        context.agreed(lambda digest=digest: require_same_routing(context, digest))

    def check() -> dict[str, Any]:
        result = context.agreed(micro.check)
        return {"rel_error": result.rel_error, "sqnr_db": result.sqnr_db} if result else {}

    how = {"clock": clock, "started": started, "check": check, "passages": micro.passages}
    return RankReport(rank=context.rank, **measured_step(cell, context, micro, **how), **micro.fields)


def _all_to_all(cell: Cell, context: RankContext) -> Micro:
    """The bare exchange, every byte that arrives checked."""
    bare = prepare_bare(cell, context)
    return Micro(tuple(bare.stages()), bare.check, bare.fields, (bare.passage,))


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
    return Micro((("gemm1", step),), check, fields)


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

    return Micro((("quantise", step),), check, {"activation_bytes": rows.nbytes + encoded.nbytes})


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
