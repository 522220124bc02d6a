"""Roofline of a stage: the larger of bytes over memory bandwidth and FLOPs over the dense peak, plus launches.

Idealised: peaks are the part's data-sheet figures, caches hold nothing between kernels, every kernel reaches the
roof whatever its tile shapes, and applying scales or decoding narrow weights in registers is free. So a real
kernel is slower; how much is for later methods to say.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from workbench.spec.cluster import Hardware
from workbench.spec.precision import NumberFormat, Precision

MICROSECONDS = 1e6


@dataclass(frozen=True)
class Rates:
    """Roofs of one GPU for one precision: bytes and FLOPs a microsecond, and the cost of a launch."""

    bytes_per_us: float
    expert_flops_per_us: float
    wide_flops_per_us: float
    launch_us: float
    math_path: str


def math_path(hardware: Hardware, precision: Precision) -> tuple[float, str]:
    """Dense TFLOP/s of the math for this precision on this part, and ``native``, ``upcast`` or ``emulated``.

    The wider operand decides. Two FP8 operands, with whatever scales, use the FP8 peak; FP4 beside FP8 uses the FP8
    peak, natively only on parts that also have FP4 math; two FP4 operands the FP4 peak. What the part cannot
    multiply is stored narrow and multiplied in bf16 (``upcast``): FP4 on Hopper, FP8 on Ampere, and MXFP8, whose
    scales a block only the matrix units with FP4 math apply. A processor decodes both operands before it multiplies
    them (``emulated``), as the kernels do there.
    """
    formats = {precision.weights.format, precision.activations.format}
    fp8, fp4 = hardware.fp8_dense_tflops, hardware.fp4_dense_tflops
    if formats == {"bf16"}:
        return hardware.bf16_dense_tflops, "native"
    if "bf16" in formats:
        return hardware.bf16_dense_tflops, "upcast"
    if hardware.device == "cpu":
        return hardware.bf16_dense_tflops, "emulated"
    if formats == {"e2m1"}:
        return (fp4, "native") if fp4 else (hardware.bf16_dense_tflops, "upcast")
    if formats == {"e4m3"} and precision.weights.granularity == "mx" and not fp4:
        return hardware.bf16_dense_tflops, "upcast"
    if fp8:
        return fp8, "upcast" if "e2m1" in formats and not fp4 else "native"
    return hardware.bf16_dense_tflops, "upcast"


def rates_of(hardware: Hardware, precision: Precision) -> Rates:
    """The roofs of ``hardware`` for ``precision``."""
    tflops, path = math_path(hardware, precision)
    return Rates(
        bytes_per_us=hardware.memory_tb_per_s * 1e12 / MICROSECONDS,
        expert_flops_per_us=tflops * 1e12 / MICROSECONDS,
        wide_flops_per_us=hardware.bf16_dense_tflops * 1e12 / MICROSECONDS,
        launch_us=hardware.launch_us,
        math_path=path,
    )


@dataclass(frozen=True)
class Stage:
    """Work of one named stage on each rank: bytes_R and flops_R of float64 [R], in ``kernels`` launches.

    ``part`` is the record's column that its time belongs to: ``compute``, ``quantise``, ``wire`` (encoding for the
    wire), ``dispatch`` or ``combine`` (copies beside an exchange). ``us_R`` is its time by another method than the
    roofline, launches included.
    """

    name: str
    bytes_R: np.ndarray
    flops_R: np.ndarray
    kernels: int
    flops_per_us: float
    part: str = "compute"
    us_R: np.ndarray | None = None

    def memory_us_R(self, rates: Rates) -> np.ndarray:
        return self.bytes_R / rates.bytes_per_us

    def math_us_R(self) -> np.ndarray:
        return self.flops_R / self.flops_per_us

    def launch_us(self, rates: Rates) -> float:
        return self.kernels * rates.launch_us

    def duration_us_R(self, rates: Rates) -> np.ndarray:
        """Microseconds [R]: launches, then the slower of memory and math; or ``us_R``."""
        if self.us_R is not None:
            return self.us_R
        return self.launch_us(rates) + np.maximum(self.memory_us_R(rates), self.math_us_R())


def gemm_stage(
    name: str, *, rows_R: np.ndarray, touched_R: np.ndarray, out: int, inner: int, weight_bytes: float,
    in_row_bytes: float, flops_per_us: float, kernels: int = 1,
) -> Stage:  # fmt: skip
    """A grouped GEMM [rows, inner] x [out, inner] over ``touched`` experts of ``weight_bytes`` each, bf16 out.

    Every touched expert's weights are read once, every row read and written once: 2 * rows * out * inner FLOPs.
    """
    return Stage(
        name,
        touched_R * weight_bytes + rows_R * (in_row_bytes + 2 * out),
        2.0 * rows_R * out * inner,
        kernels,
        flops_per_us,
    )


def copy_stage(
    name: str, *, rows_R: np.ndarray, row_bytes: float, rates: Rates, kernels: int = 1, part: str = "compute"
) -> Stage:
    """A stage that only moves memory: ``row_bytes`` read and written for each row."""
    return Stage(name, rows_R * row_bytes, np.zeros_like(rows_R), kernels, rates.wide_flops_per_us, part)


def expert_flops(tokens: float, *, top_k: int, hidden: int, intermediate: int, shared_intermediate: int = 0) -> float:
    """FLOPs of the gated expert MLPs: 6 * T * k * H * I, plus 6 * T * H * Is for shared experts.

    Three matrices of H * I, two operations each; the router and dropped tokens are not in it, nor do the number of
    experts or the padding of tiles matter.
    """
    return 6.0 * tokens * hidden * (top_k * intermediate + shared_intermediate)


def bound_by(stages: Iterable[Stage], rates: Rates, *, rank: int, network_us: float) -> str:
    """What takes most of a rank's time: ``memory``, ``compute``, ``launch`` or ``network``."""
    shares = {"memory": 0.0, "compute": 0.0, "launch": 0.0, "network": network_us}
    for stage in stages:
        memory_us, math_us = float(stage.memory_us_R(rates)[rank]), float(stage.math_us_R()[rank])
        shares["launch"] += stage.launch_us(rates)
        shares["memory" if memory_us >= math_us else "compute"] += max(memory_us, math_us)
    return max(shares, key=lambda name: shares[name])


def above_peak(*, hbm_gb_per_s: float | None, tflops: float | None, hardware: Hardware, precision: Precision) -> bool:
    """True when a figure for one GPU lies above what the part can do."""
    too_fast_memory = hbm_gb_per_s is not None and hbm_gb_per_s > hardware.memory_tb_per_s * 1e3 * (1 + 1e-9)
    too_fast_math = tflops is not None and tflops > math_path(hardware, precision)[0] * (1 + 1e-9)
    return too_fast_memory or too_fast_math


def is_encoded(number: NumberFormat) -> bool:
    """True when bf16 values must be quantised into this format."""
    return number.format != "bf16"
