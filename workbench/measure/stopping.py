"""When a measurement has enough samples."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import binom


def median_interval(samples: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """Distribution-free confidence interval of the median from order statistics (binomial ranks).

    With too few samples for the confidence it is the whole range.
    """
    ordered = np.sort(np.asarray(samples, dtype=float))
    lowest = max(int(binom.ppf((1 - confidence) / 2, len(ordered), 0.5)) - 1, 0)
    return float(ordered[lowest]), float(ordered[len(ordered) - 1 - lowest])


def relative_interval(samples: np.ndarray) -> float:
    """Half the interval of the median over the median; inf without samples."""
    if len(samples) == 0:
        return float("inf")
    low, high = median_interval(samples)
    return (high - low) / 2 / max(float(np.median(samples)), 1e-9)


@dataclass(frozen=True)
class StoppingRule:
    """Stop once ``min_samples`` are in and the interval is narrow, or when the time is up."""

    min_samples: int
    max_relative_ci: float
    max_seconds: float

    def is_enough(self, samples: np.ndarray, elapsed_s: float) -> bool:
        """Whether to stop; time alone stops it only with at least one sample."""
        if len(samples) == 0:
            return False
        if elapsed_s >= self.max_seconds:
            return True
        return len(samples) >= self.min_samples and relative_interval(samples) <= self.max_relative_ci

    def next_batch(self, samples: np.ndarray, elapsed_s: float) -> int:
        """How many samples to take before asking again: what is missing, within the time that is left."""
        missing = max(self.min_samples - len(samples), max(len(samples) // 4, 1))
        if len(samples) == 0:
            return min(missing, 3)
        per_sample_s = max(elapsed_s / len(samples), 1e-7)
        return max(1, min(missing, int((self.max_seconds - elapsed_s) / per_sample_s)))
