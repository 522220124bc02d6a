"""Rooflines of the scopes that need no model: the bare exchange, a grouped GEMM, an encoding."""

import numpy as np

from workbench.comm.topology import topology_of
from workbench.simulate.compute import Rates, Stage, gemm_stage, is_encoded
from workbench.simulate.formats import row_bytes
from workbench.simulate.layer import Leg
from workbench.simulate.network import hop_load, link_rates, price_hop
from workbench.simulate.stages import quantise_stage
from workbench.spec.errors import Unsupported
from workbench.spec.precision import Precision, tensor_bytes
from workbench.spec.scenario import AllToAllScope, Cell, GroupedGemmScope, QuantizeScope

EVEN_SKEWS = ("uniform", "balanced")


def all_to_all_leg(cell: Cell, scope: AllToAllScope) -> Leg:
    """An even exchange: each rank sends ``bytes_per_rank / R`` to every rank, itself included.

    Raises Unsupported for strategies other than flat and for skewed sizes, which need a model's routing.
    """
    if cell.dispatch.strategy != "flat":
        raise Unsupported(
            f"dispatch.strategy {cell.dispatch.strategy}: a bare all_to_all has no tokens to route; use flat"
        )
    if cell.workload.skew.kind not in EVEN_SKEWS:
        raise Unsupported(f"workload.skew {cell.workload.skew.kind}: a bare all_to_all is simulated even, not skewed")
    if scope.bytes_per_rank < cell.ep:
        raise Unsupported(f"scope.bytes_per_rank: {scope.bytes_per_rank} bytes give {cell.ep} ranks less than one each")
    bytes_RR = np.full((cell.ep, cell.ep), scope.bytes_per_rank / cell.ep)
    node_R = np.asarray(topology_of(cell).node_of)
    load = hop_load("all_to_all", bytes_RR, np.ones_like(bytes_RR), node_R=node_R)
    return Leg("dispatch.all_to_all", load, price_hop(load, link_rates(cell.cluster), row_bytes=1), 1)


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
