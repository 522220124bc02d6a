"""What every adapter to an installed library declares, and how its library is found.

T tokens, E experts, K top-k, H hidden, I intermediate. An adapter takes our encoded experts once (``prepare``, outside
any timing) and gives a call (x_TH, ids_TK, weights_TK) -> y_TH that does everything from routed tokens to their sum.
Nothing here imports a peer before it is asked to run.
"""

import importlib.metadata
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from torch import Tensor

from kernels.activation import Activation
from kernels.moe import ExpertWeights
from kernels.recipes import Recipe

Layer = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x bf16 [T, H], ids int32 [T, K], weights float32 [T, K]) -> bf16 [T, H]."""

COPIES = {"deep_gemm": "vllm", "triton_kernels": "vllm"}
"""Packages that another package ships a copy of, under its ``third_party``."""


class PeerBroken(RuntimeError):
    """A peer is installed and cannot be imported; the message says why."""


@dataclass(frozen=True)
class LayerRequest:
    """What a layer asks of a peer. ``has_dropped``: some ids are -1 (dropped, or an expert of another rank)."""

    num_experts: int
    hidden: int
    intermediate: int
    top_k: int
    recipe: Recipe
    activation: Activation
    has_bias: bool = False
    weight_on: str = "output"
    has_dropped: bool = False


@dataclass(frozen=True)
class Adapter:
    """A peer. ``formats`` are the (weights, activations) it multiplies; ``capability`` the least of a GPU.

    ``limits`` says why a layer of one of those formats is refused, or None.
    """

    name: str
    package: str
    distribution: str
    install: str
    formats: frozenset[tuple[str, str]]
    capability: tuple[int, int]
    limits: Callable[[LayerRequest], str | None]
    prepare: Callable[[ExpertWeights, LayerRequest], Layer]
    devices: tuple[str, ...] = ("cuda",)


def refusal(
    adapter: Adapter, request: LayerRequest, *, device_type: str, capability: tuple[int, int] | None
) -> str | None:
    """Why the peer cannot run this layer here, with what to do about it; None where it can."""
    asked = (request.recipe.weights, request.recipe.activations)
    if asked not in adapter.formats:
        known = ", ".join(sorted(f"{weights} x {inputs}" for weights, inputs in adapter.formats))
        return f"{adapter.name} has no {asked[0]} x {asked[1]} experts through this adapter; it has {known}"
    reason = adapter.limits(request)
    if reason is not None:
        return f"{adapter.name} {reason}"
    if not is_installed(adapter.package):
        return f"{adapter.name} is not installed; get it with: {adapter.install}"
    if device_type not in adapter.devices:
        return f"{adapter.name} runs on {' or '.join(adapter.devices)} here, not on {device_type}"
    if device_type != "cuda":
        return None
    if capability is None or tuple(capability) < adapter.capability:
        found = "unknown" if capability is None else "{}.{}".format(*capability)
        return f"{adapter.name} needs compute capability {'{}.{}'.format(*adapter.capability)}, this GPU's is {found}"
    return None


def math_path(request: LayerRequest) -> str:
    """``native``, or ``upcast`` where small weights meet BF16 activations: peers do not emulate."""
    upcast = request.recipe.activations == "bf16" and request.recipe.weights != "bf16"
    return "upcast" if upcast else "native"


def is_installed(package: str) -> bool:
    """True where the package, or a copy of it in another one, can be found; nothing is imported."""
    return package in sys.modules or find_spec(package) is not None or _copy_of(package) is not None


def load(module: str) -> ModuleType:
    """Import ``package`` or ``package.module``, from the copy in another package if it is not installed itself.

    Raises PeerBroken with the cause.
    """
    package = module.split(".")[0]
    try:
        if package not in sys.modules and find_spec(package) is None:
            _load_copy(package)
        return import_module(module)
    except Exception as fault:  # a foreign package may raise anything at import
        raise PeerBroken(f"{module} is installed and cannot be imported: {type(fault).__name__}: {fault}") from fault


def version(adapter: Adapter) -> str:
    """The version of the peer as its distribution says, or its own ``__version__``, or whose copy it is."""
    own = _distribution_version(adapter.distribution)
    if own is not None:
        return own
    own = getattr(sys.modules.get(adapter.package), "__version__", None)
    host = COPIES.get(adapter.package)
    outer = f"copy in {host} {_distribution_version(host)}" if host and _copy_of(adapter.package) else None
    return " ".join(part for part in (own, outer and f"({outer})") if part) or "unknown"


def _distribution_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@cache
def _copy_of(package: str) -> Path | None:
    """``__init__.py`` of the copy that another installed package ships."""
    host = find_spec(COPIES[package]) if package in COPIES else None
    places = list(host.submodule_search_locations or ()) if host is not None else []
    files = [Path(place) / "third_party" / package / "__init__.py" for place in places]
    return next((file for file in files if file.exists()), None)


def _load_copy(package: str) -> None:
    """Import the copy under the package's own name, which it uses to import itself."""
    file = _copy_of(package)
    if file is None:
        raise ModuleNotFoundError(f"No module named {package!r}")
    spec = spec_from_file_location(package, file, submodule_search_locations=[str(file.parent)])
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[package] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[package]
        raise
