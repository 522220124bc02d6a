"""Counts of a sample of the tokens, scaled to all of them without the sample's extra scatter."""

import numpy as np


def full_counts(counts: np.ndarray, *, scale: float) -> np.ndarray:
    """Counts [N] of a sample as those of ``scale`` times as many tokens, the sum kept exactly.

    Plain scaling would keep the sample's relative noise, and the maximum over ranks would be too high: 8192 pairs
    on 256 ranks make the busiest rank 1.5 times the mean by chance alone. A sampled count scatters by its Poisson
    variance m beside the true differences, the full one by m / scale; deviations from the mean shrink by the ratio of
    the standard deviations. Skew well above the noise is left as it is.
    """
    values = np.asarray(counts, dtype=np.float64)
    if scale <= 1.0 or values.size == 0:
        return values * scale
    mean, variance = values.mean(), values.var()
    if variance == 0:
        return values * scale
    true_variance = max(0.0, variance - mean)
    shrink = min(1.0, np.sqrt((true_variance + mean / scale) / variance))
    return scale * (mean + shrink * (values - mean))
