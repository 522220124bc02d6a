"""How long one estimate takes on this machine."""

from collections.abc import Callable
from time import perf_counter

from workbench.simulate.estimate import find_estimators
from workbench.simulate.kernel_model import Work, work_of
from workbench.simulate.layer_rows import Layer
from workbench.spec.catalog import load_hardware
from workbench.spec.precision import PRECISIONS
from workbench.spec.validation import ValidationRow

LONGEST_US = 20.0
ROUNDS, ESTIMATES = 20, 500
PRECISION = PRECISIONS["fp8_block"]


def speed_section() -> list[ValidationRow]:
    """One line: microseconds of a ``calibrated`` estimate of one GPU, the best of several rounds."""
    layer = Layer(4096, 1408, 8, 128, 1, 8, skewed=False)
    hardware = load_hardware("h200-sxm")
    (one, *_) = find_estimators(hardware, kernel="vllm", precision=PRECISION, layer=layer, method="calibrated")
    work = work_of(PRECISION, hidden=4096, intermediate=1408, pairs=1024.0, touched=16.0)
    us = min(_round_us(one.us, work) for _ in range(ROUNDS))
    return [
        ValidationRow(
            section="speed",
            method="calibrated",
            split="one estimate",
            hardware=hardware.name,
            dtype=PRECISION.name,
            count=ROUNDS * ESTIMATES,
            goal=f"one estimate <= {LONGEST_US:g} us",
            met=us <= LONGEST_US,
            held_out=f"nothing; on this machine it takes {us:.1f} us, the best of {ROUNDS} rounds of {ESTIMATES}",
        )
    ]


def _round_us(estimate: Callable[..., object], work: Work) -> float:
    start = perf_counter()
    for _ in range(ESTIMATES):
        estimate(work, rows_per_expert=8.0)
    return (perf_counter() - start) / ESTIMATES * 1e6
