"""Cold and warm caches: what a sample finds in the last-level cache."""

from collections.abc import Callable
from pathlib import Path

import torch

CPU_CACHE_FALLBACK = 32 * 2**20
CPU_FLUSH_LIMIT = 64 * 2**20
_CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def last_level_cache_bytes() -> int:
    """Size of the CPU's largest cache as Linux tells it, or 32 MiB where it does not."""
    sizes = [size.read_text().strip() for size in _CPU_CACHES.glob("index*/size")]
    kib = [int(size[:-1]) * (1024 if size.endswith("M") else 1) for size in sizes if size[:-1].isdigit()]
    return max(kib, default=CPU_CACHE_FALLBACK // 1024) * 1024


def cache_flusher(device: torch.device, *, mode: str, sharers: int = 1) -> Callable[[], None]:
    """A call to run before each sample: writes over the cache when ``mode`` is cold, does nothing when warm.

    ``sharers`` processes that flush the same cache at the same time split the buffer between them.
    """
    if mode == "warm":
        return lambda: None
    if device.type == "cuda":
        l2 = torch.cuda.get_device_properties(device).L2_cache_size
        buffer = torch.empty(max(4 * l2, 256 * 2**20), dtype=torch.uint8, device=device)
    else:
        size = min(2 * last_level_cache_bytes(), CPU_FLUSH_LIMIT) // sharers
        buffer = torch.empty(size, dtype=torch.uint8)
    return lambda: buffer.zero_()
