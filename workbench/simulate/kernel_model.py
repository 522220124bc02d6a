"""A physical model of the local kernels of an MoE layer: seven constants and a tile for a family of kernels on a GPU.

A family is (hardware, kernel, its version of the kernel, dtype). The time of one layer on one GPU is

    launch + smooth_max(memory * weights of touched experts / bandwidth,
                        math * FLOPs of padded rows * wave / dense peak)
           + per_expert * touched + activations * bytes of local rows / bandwidth
           + others * bytes of all other pairs / bandwidth

where rows are padded to the tile of every touched expert, and ``wave`` is what a last round of blocks that leaves
multiprocessors idle costs. ``others`` are pairs of the group's tokens that other GPUs compute, where this GPU holds
those tokens too and its kernels pass over them: the floor of expert parallelism without a dispatch.

Plain arithmetic, so floats and arrays of any one shape go through the same lines.
"""

from dataclasses import astuple, dataclass
from typing import Any

from workbench.simulate.compute import MICROSECONDS, math_path
from workbench.simulate.formats import row_bytes
from workbench.simulate.weights import WIDE_BYTES
from workbench.spec.cluster import Hardware
from workbench.spec.precision import Precision, tensor_bytes

Number = Any
"""A float, or an array of them."""

BLOCK_COLUMNS = 128
MULTIPROCESSORS = {
    "a100-sxm": 108, "h100-sxm": 132, "h200-sxm": 132, "h800-sxm": 132, "h20": 78, "b200-sxm": 148, "gb200-nvl72": 152,
    "l40s": 142, "rtx-4090": 128, "rtx-5090": 170, "rtx-pro-6000": 188, "mi300x": 304, "mi325x": 304, "mi355x": 256,
}  # fmt: skip
"""Multiprocessors of a part, from its vendor's data sheet or as the device reports them."""
USUAL_MULTIPROCESSORS = 132


@dataclass(frozen=True)
class Peaks:
    """What a GPU can do at most, by microsecond, for one precision."""

    bytes_per_us: Number
    flops_per_us: Number
    multiprocessors: Number


@dataclass(frozen=True)
class Work:
    """What one GPU computes: (token, expert) ``pairs`` over ``touched`` experts, and pairs it only passes over.

    ``weight_bytes`` of one expert, ``pair_bytes`` read and written by one pair's rows, ``pair_flops`` its FLOPs,
    ``other_bytes`` of one pair passed over, ``columns`` of the first GEMM.
    """

    pairs: Number
    touched: Number
    others: Number
    weight_bytes: Number
    pair_bytes: Number
    pair_flops: Number
    other_bytes: Number
    columns: Number


@dataclass(frozen=True)
class Constants:
    """Factors over the peaks' time, except ``launch_us`` and ``per_expert_us``; ``sharpness`` of the larger of two."""

    launch_us: float
    memory: float
    math: float
    sharpness: float
    activations: float
    others: float
    per_expert_us: float
    tile: int


def layer_us(constants: Constants, work: Work, peaks: Peaks) -> Number:
    """Microseconds of the layer's local kernels."""
    launch, memory, math, sharpness, activations, others, per_expert, tile = astuple_fast(constants)
    filled = work.touched * tile
    share = work.pairs / (filled + 1e-9)
    # An expert wastes half a tile when it has many rows and all but its own rows of one when it has few.
    rows = work.pairs + filled * (0.5 + 0.5 / (1 + share) ** 2)
    blocks = rows / tile * (work.columns / BLOCK_COLUMNS) / peaks.multiprocessors
    weights_us = memory * work.touched * work.weight_bytes / peaks.bytes_per_us
    math_us = math * rows * work.pair_flops * (1 + 0.5 / (blocks + 0.25)) / peaks.flops_per_us
    power = 1 + sharpness
    moved = activations * work.pairs * work.pair_bytes + others * work.others * work.other_bytes
    longest_us = (weights_us**power + math_us**power) ** (1 / power)
    return launch + longest_us + per_expert * work.touched + moved / peaks.bytes_per_us


def astuple_fast(constants: Constants) -> tuple[Any, ...]:
    """``dataclasses.astuple`` without its deep copies, which would take most of an estimate."""
    return tuple(vars(constants).values())


def least_us(work: Work, peaks: Peaks) -> tuple[Number, Number]:
    """What no kernel can beat: (weights read once, products of the unpadded rows)."""
    return work.touched * work.weight_bytes / peaks.bytes_per_us, work.pairs * work.pair_flops / peaks.flops_per_us


def peaks_of(hardware: Hardware, precision: Precision) -> Peaks:
    """Data-sheet peaks of the part for the math of this precision."""
    tflops, _ = math_path(hardware, precision)
    return Peaks(
        bytes_per_us=hardware.memory_tb_per_s * 1e12 / MICROSECONDS,
        flops_per_us=tflops * 1e12 / MICROSECONDS,
        multiprocessors=MULTIPROCESSORS.get(hardware.name, USUAL_MULTIPROCESSORS),
    )


def work_of(
    precision: Precision, *, hidden: int, intermediate: int, pairs: Number, touched: Number, others: Number = 0.0
) -> Work:
    """Work of a gated MLP [hidden -> 2 * intermediate -> hidden]; ``intermediate`` after the tensor-parallel split."""
    weights = precision.weights
    return Work(
        pairs=pairs,
        touched=touched,
        others=others,
        weight_bytes=tensor_bytes(weights, 2 * intermediate, hidden, weights=True)
        + tensor_bytes(weights, hidden, intermediate, weights=True),
        pair_bytes=row_bytes(precision.activations, hidden) + WIDE_BYTES * (hidden + 3 * intermediate),
        pair_flops=6.0 * hidden * intermediate,
        other_bytes=2 * WIDE_BYTES * hidden,
        columns=2 * intermediate,
    )


def to_list(constants: Constants) -> list[float]:
    """The constants as a list for a file, four digits each."""
    return [float(f"{value:.4g}") for value in astuple(constants)[:-1]] + [constants.tile]


def from_list(values: list[float]) -> Constants:
    """``to_list`` undone."""
    return Constants(*values[:-1], tile=int(values[-1]))
