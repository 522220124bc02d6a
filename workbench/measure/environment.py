"""What this machine is: versions, processors, clocks, drivers. Nothing here fails for want of a GPU."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil
import torch

PACKAGES = ("moe-workbench", "torch", "triton", "ray", "numpy", "pandas", "pyarrow", "pydantic", "scipy")


def describe_machine() -> dict[str, Any]:
    """Versions, commit, processor, memory and GPUs of this machine as plain JSON values."""
    return {
        "hostname": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": package_versions(),
        "git_commit": git_commit(),
        "cpu": {"name": cpu_name(), "logical_cores": os.cpu_count(), "memory_bytes": psutil.virtual_memory().total},
        "gpus": describe_gpus(),
        "cuda": torch.version.cuda,
        "nccl": nccl_version(),
    }


def package_versions() -> dict[str, str | None]:
    """Installed versions of the packages that decide a figure; None where one is absent."""
    return {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_commit() -> str | None:
    """Commit of the checkout that the code runs from, with ``+dirty``; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "HEAD")
        return head + ("+dirty" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    result = subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True
    )
    return result.stdout.strip()


def cpu_name() -> str:
    """Model name from /proc/cpuinfo, or what the platform module knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def nccl_version() -> str | None:
    """NCCL of this torch build."""
    if not torch.cuda.is_available():
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())


def describe_gpus() -> list[dict[str, Any]]:
    """A dict a GPU; clocks, power cap and driver only where the NVIDIA management library answers."""
    if not torch.cuda.is_available():
        return []
    return [_describe_gpu(index) for index in range(torch.cuda.device_count())]


def _describe_gpu(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    described = {
        "index": index,
        "name": properties.name,
        "capability": [properties.major, properties.minor],
        "memory_bytes": properties.total_memory,
        "num_sms": properties.multi_processor_count,
    }
    return described | _managed_facts(index)


def _managed_facts(index: int) -> dict[str, Any]:
    try:
        import pynvml
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        return {
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "sm_clock_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "max_sm_clock_mhz": pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "memory_clock_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            "power_limit_w": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
        }
    except pynvml.NVMLError as error:
        return {"management_library": str(error)}


def sm_clock_mhz(index: int) -> float | None:
    """Current SM clock, or None."""
    clock = _managed_facts(index).get("sm_clock_mhz")
    return float(clock) if clock is not None else None
