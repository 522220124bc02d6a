"""Cold means that the data left the cache."""

import torch

from workbench.measure.cache import cache_flusher, last_level_cache_bytes
from workbench.measure.clock import WallClock


def test_e01_cold_reads_are_not_faster_than_warm_ones():
    weights = torch.ones(8 * 2**20, dtype=torch.uint8)
    clock = WallClock()

    def median_us(mode: str) -> float:
        flush = cache_flusher(torch.device("cpu"), mode=mode)
        times = []
        for _ in range(30):
            flush()
            times.append(clock.time(lambda: weights.sum(dtype=torch.int64)))
        return sorted(times)[15]

    warm = median_us("warm")
    assert median_us("cold") >= 0.9 * warm


def test_the_cache_size_is_plausible():
    assert 2**20 <= last_level_cache_bytes() <= 2**30
