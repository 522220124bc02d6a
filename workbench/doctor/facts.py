"""What this machine is and can: devices, versions, math paths, Ray's settings."""

import importlib.util
import os
from typing import Any

from kernels.moe import math_path
from kernels.recipes import RECIPES
from workbench.doctor.missing import find_missing
from workbench.measure.environment import describe_machine
from workbench.orchestrate.session import local_capacity

VARIABLES = ("RAY_ADDRESS", "RAY_AUTH_MODE", "CUDA_VISIBLE_DEVICES", "TRITON_INTERPRET")


def examine() -> dict[str, Any]:
    """Everything ``moe-workbench doctor`` says, as plain JSON values. Starts nothing and changes nothing."""
    machine = describe_machine()
    return {
        "machine": machine,
        "devices": [_cpu_device(machine), *(_gpu_device(gpu) for gpu in machine["gpus"])],
        "ray": local_capacity(),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "warnings": _warnings(machine),
        "missing": [vars(gap) for gap in find_missing(has_gpu=bool(machine["gpus"]))],
    }


def _cpu_device(machine: dict[str, Any]) -> dict[str, Any]:
    cpu = machine["cpu"]
    paths = _math_paths("cpu", None)
    return {"device": "cpu", "name": cpu["name"], "memory_bytes": cpu["memory_bytes"], "math_paths": paths}


def _gpu_device(gpu: dict[str, Any]) -> dict[str, Any]:
    major, minor = gpu["capability"]
    return {"device": f"cuda:{gpu['index']}", **gpu, "math_paths": _math_paths("cuda", (major, minor))}


def _math_paths(device_type: str, capability: tuple[int, int] | None) -> dict[str, str]:
    """How each precision's products are formed on a device; ``refused`` where no kernel here can."""
    return {name: _math_path(name, device_type, capability) for name in RECIPES}


def _math_path(precision: str, device_type: str, capability: tuple[int, int] | None) -> str:
    try:
        return math_path(precision, device_type=device_type, capability=capability)
    except ValueError:
        return "refused"


def _warnings(machine: dict[str, Any]) -> list[str]:
    found = []
    if (address := os.environ.get("RAY_ADDRESS")) is not None:
        found.append(f"RAY_ADDRESS={address!r} is not used: runs start a Ray of their own unless --address is given")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not machine["gpus"]:
        found.append(f"CUDA_VISIBLE_DEVICES={visible!r} and torch sees no GPU: unset it, or list GPUs that exist")
    if _foreign_kernels():
        found.append("another package named kernels is imported instead of this project's folder")
    return found


def _foreign_kernels() -> bool:
    spec = importlib.util.find_spec("kernels")
    return spec is not None and spec.origin is not None and "site-packages" in spec.origin
