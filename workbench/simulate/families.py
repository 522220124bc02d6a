"""Families of kernels that the simulator has constants of, and which of them stands for a cell.

A family with rows on the cell's GPU comes first. Without one, that of the same kernel and precision on the nearest
other GPU does: the model's peaks are then the cell's, and the band is wider.
"""

from dataclasses import dataclass
from functools import cache
from math import exp, hypot, log
from typing import Any

from workbench.simulate.calibration_files import calibration_dir, read_constants
from workbench.simulate.kernel_model import Constants, from_list, peaks_of
from workbench.spec.catalog import load_hardware, names
from workbench.spec.cluster import Hardware
from workbench.spec.precision import PRECISIONS, Precision

FOREIGN_DTYPES = ("int4_wo",)
"""dtypes of the tables that are none of our recipes, however near their bytes are."""
Band = tuple[float, float]


@dataclass(frozen=True)
class Family:
    """A family's constants and what they were fitted on; ``kind`` is ``own`` or ``published``.

    ``between`` is the band of its interpolated rows where it has one of its own, else that of its kind stands.
    """

    hardware: str
    kernel: str
    version: str | None
    source: str
    dtype: str
    kind: str
    precision: str
    constants: Constants
    band: Band
    shapes: frozenset[tuple[int, ...]]
    between: Band | None


@cache
def _families(folder: str) -> tuple[Family, ...]:
    return tuple(
        Family(
            **{name: entry[name] for name in ("hardware", "kernel", "version", "source", "dtype", "kind", "precision")},
            constants=from_list(entry["constants"]),
            band=tuple(entry["band"]),
            shapes=frozenset(tuple(shape) for shape in entry["shapes"]),
            between=tuple(entry["between"]) if "between" in entry else None,
        )
        for entry in read_constants()["families"]
    )


def all_families() -> tuple[Family, ...]:
    """Every family, those calibrated on this machine before those of the package."""
    return _families(str(calibration_dir()))


def priced_kernels() -> tuple[str, ...]:
    """Kernels that have constants on some GPU."""
    return tuple(sorted({family.kernel for family in all_families()}))


def bands() -> dict[str, Any]:
    """Bands by kind and name."""
    return read_constants()["bands"]


def widened(first: Band, second: Band) -> Band:
    """The band of two errors that have nothing to do with each other."""
    low, high = (hypot(log(one), log(other)) for one, other in zip(first, second, strict=True))
    return exp(-low), exp(high)


def is_recipe(precision: Precision) -> bool:
    """True when the precision's formats are those of its name."""
    known = PRECISIONS.get(precision.name)
    return known is not None and (known.weights, known.activations) == (precision.weights, precision.activations)


def find_families(hardware: Hardware, kernel: str, precision: Precision) -> tuple[tuple[Family, ...], str | None]:
    """(the families of one GPU, that GPU's name where it is another one); empty where no GPU has any."""
    if not is_recipe(precision):
        return (), None
    fitting = [
        family
        for family in all_families()
        if (family.kernel, family.precision) == (kernel, precision.name) and family.dtype not in FOREIGN_DTYPES
    ]
    here = tuple(family for family in fitting if family.hardware == hardware.name)
    if here or hardware.device == "cpu":
        return here, None
    sources = {family.hardware for family in fitting if family.hardware in names("hardware")}
    sources = {name for name in sources if load_hardware(name).device != "cpu"}
    if not sources:
        return (), None
    nearest = min(sorted(sources), key=lambda name: _distance(load_hardware(name), hardware, precision))
    return tuple(family for family in fitting if family.hardware == nearest), nearest


def is_near(source: str, hardware: Hardware) -> bool:
    """True when two GPUs are of one architecture, so that the same kernels run on both."""
    return _major(load_hardware(source)) == _major(hardware) is not None


def _major(hardware: Hardware) -> str | None:
    return hardware.compute_capability.partition(".")[0] if hardware.compute_capability else None


def _distance(source: Hardware, target: Hardware, precision: Precision) -> tuple[bool, float]:
    own, other = peaks_of(source, precision), peaks_of(target, precision)
    apart = hypot(log(own.bytes_per_us / other.bytes_per_us), log(own.flops_per_us / other.flops_per_us))
    return not is_near(source.name, target), apart
