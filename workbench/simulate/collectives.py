"""NCCL's collectives inside one scale-up domain as curves over bytes, from published tables or a fit of them.

The tables' size is a rank's whole buffer, the larger one of a gather and of a scatter: of n ranks' a share of
(n - 1) / n leaves the rank or comes to it.
"""

from functools import cache

import pandas as pd

from workbench.simulate.curves import SizeCurve, size_curve
from workbench.simulate.published import published
from workbench.spec.cluster import MeasuredAllToAll

ALL_TO_ALL, ALL_REDUCE = "alltoall", "all_reduce"
GATHER, SCATTER = "all_gather", "reduce_scatter"


def nccl_rows() -> pd.DataFrame:
    """The table ``nccl_intranode`` with catalog names of parts."""
    frame = published("nccl_intranode")
    return frame.assign(hardware=frame["hardware"].str.replace("_", "-"))


@cache
def measured_parts() -> tuple[str, ...]:
    """Parts with curves of their own."""
    return tuple(sorted(nccl_rows()["hardware"].unique()))


@cache
def nccl_curve(hardware: str, op: str, num_gpus: int) -> SizeCurve:
    """Microseconds over the bytes of a rank's buffer. Raises ValueError for a part or a number of GPUs not measured."""
    rows = nccl_rows()
    rows = rows[rows["hardware"].eq(hardware) & rows["op"].eq(op) & rows["num_gpus"].eq(num_gpus)]
    return size_curve(rows["bytes"], rows["us"])


@cache
def measured_counts(hardware: str, op: str) -> tuple[int, ...]:
    """Numbers of GPUs with a curve."""
    rows = nccl_rows()
    return tuple(sorted(int(n) for n in rows[rows["hardware"].eq(hardware) & rows["op"].eq(op)]["num_gpus"].unique()))


@cache
def leaving_curve(hardware: str, num_ranks: int, op: str = ALL_TO_ALL) -> SizeCurve:
    """Microseconds over the bytes that leave a rank, or reach it, as measured with the nearest number of GPUs.

    ``op``: ALL_TO_ALL, GATHER or SCATTER.
    """
    near = min(measured_counts(hardware, op), key=lambda count: (abs(count - num_ranks), count))
    curve = nccl_curve(hardware, op, near)
    return SizeCurve(tuple(size * (near - 1) / near for size in curve.sizes), curve.us)


def fitted_curve(fit: MeasuredAllToAll) -> SizeCurve:
    """The same from a published alpha and bandwidth, which counts what a rank sends itself."""
    rate = fit.algbw_gb_per_s * 1e3 * (fit.num_gpus - 1) / fit.num_gpus
    return SizeCurve((0.0, rate * fit.alpha_us), (fit.alpha_us, 2 * fit.alpha_us))
