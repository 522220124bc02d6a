"""Algorithm and bus bandwidth of an all-to-all, as nccl-tests define them.

``bytes_per_rank`` is the whole send buffer of one rank, the part for itself included.
"""


def algbw(bytes_per_rank: int, *, seconds: float, num_ranks: int) -> float | None:
    """GB/s (10^9): bytes of one rank's buffer over the time. None for one rank, where nothing travels."""
    if num_ranks == 1 or seconds <= 0:
        return None
    return bytes_per_rank / seconds / 1e9


def busbw(bytes_per_rank: int, *, seconds: float, num_ranks: int) -> float | None:
    """GB/s (10^9): algorithm bandwidth times (R - 1) / R, the share that leaves the rank. None for one rank."""
    bandwidth = algbw(bytes_per_rank, seconds=seconds, num_ranks=num_ranks)
    return None if bandwidth is None else bandwidth * (num_ranks - 1) / num_ranks
