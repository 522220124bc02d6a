"""Rooflines of the scopes that need neither model nor network: a grouped GEMM, an encoding."""

import numpy as np

from workbench.simulate.compute import Rates, Stage, gemm_stage, is_encoded
from workbench.simulate.formats import row_bytes
from workbench.simulate.stages import quantise_stage
from workbench.spec.errors import Unsupported
from workbench.spec.precision import Precision, tensor_bytes
from workbench.spec.scenario import GroupedGemmScope, QuantizeScope


def grouped_gemm_stages(scope: GroupedGemmScope, precision: Precision, *, rates: Rates) -> tuple[Stage, ...]:
    """Encoding of the rows where the precision has narrow activations, then the grouped product.

    Rows are spread evenly, so min(groups, m) groups are touched; 2 * m * n * k FLOPs.
    """
    rows_R = np.array([float(scope.m)])
    gemm = gemm_stage(
        "gemm1", rows_R=rows_R, touched_R=np.array([float(min(scope.groups, scope.m))]), out=scope.n, inner=scope.k,
        weight_bytes=tensor_bytes(precision.weights, scope.n, scope.k, weights=True),
        in_row_bytes=row_bytes(precision.activations, scope.k), flops_per_us=rates.expert_flops_per_us,
    )  # fmt: skip
    if not is_encoded(precision.activations):
        return (gemm,)
    return (quantise_stage(precision.activations, scope.k, rows_R=rows_R, rates=rates), gemm)


def grouped_gemm_bytes(scope: GroupedGemmScope, precision: Precision) -> tuple[int, int]:
    """Bytes of the weights, and of weights, rows and results together."""
    weights = scope.groups * tensor_bytes(precision.weights, scope.n, scope.k, weights=True)
    rows = scope.m * (row_bytes(precision.activations, scope.k) + 2 * scope.k + 2 * scope.n)
    return weights, weights + rows


def quantize_stages(scope: QuantizeScope, precision: Precision, *, rates: Rates) -> tuple[Stage, ...]:
    """One encoding of bf16 rows into the activation format. Raises Unsupported when there is nothing to encode."""
    if not is_encoded(precision.activations):
        raise Unsupported(f"precision {precision.name} keeps activations in bf16: there is nothing to quantize")
    return (quantise_stage(precision.activations, scope.columns, rows_R=np.array([float(scope.rows)]), rates=rates),)
