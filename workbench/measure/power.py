"""Power that a GPU drew over a while, from the energy counter of its driver."""

SHORTEST_S = 0.2
"""The counter moves in steps of some tens of milliseconds, so a shorter while says nothing."""


def energy_joules(gpu_index: int | None) -> float | None:
    """Energy that the GPU has used since its driver was loaded; None where no management library answers."""
    if gpu_index is None:
        return None
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(gpu_index)
        return pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
    except pynvml.NVMLError:
        return None


def mean_watts(before: float | None, after: float | None, *, seconds: float) -> float | None:
    """Mean power between two readings of ``energy_joules``; None without both, over too short a while, or where the
    counter did not move."""
    if before is None or after is None or seconds < SHORTEST_S or after <= before:
        return None
    return (after - before) / seconds
