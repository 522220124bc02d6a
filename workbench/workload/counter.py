"""Random numbers that are the same bytes on every machine.

NumPy keeps the raw words of its bit generators fixed, but not its distributions, and the last bit of its vector
logarithm depends on the processor. So only raw words are taken from it, and logarithms are made here from
IEEE-exact operations (add, multiply, divide, integer views).
"""

from statistics import NormalDist

import numpy as np

POPULARITY, TOKENS, DATA, CHANNELS, DEAL, ROUTER, TOKEN_IDS, SOURCES, TOPICS, SEQUENCES, COPIES, TRIALS = range(12)
"""Purposes: streams of different purposes are independent."""

_CHUNK = 1 << 15  # float64 temporaries of this many values stay in the cache of one core


def raw_words(count: int, *, seed: int, purpose: int, place: tuple[int, ...]) -> np.ndarray:
    """uint64 [count] from Philox, keyed by (seed, purpose, place); a prefix does not depend on ``count``."""
    sequence = np.random.SeedSequence(seed, spawn_key=(purpose, *place))
    return np.random.Philox(sequence).random_raw(count)


def normal(count: int, *, seed: int, purpose: int, place: tuple[int, ...]) -> np.ndarray:
    """Standard normal float64 [count], one by one in Python: for tables of experts, not of tokens."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse(u) for u in uniform(count, seed=seed, purpose=purpose, place=place)])


def uniform(count: int, *, seed: int, purpose: int, place: tuple[int, ...]) -> np.ndarray:
    """float64 [count] strictly inside (0, 1)."""
    words = raw_words(count, seed=seed, purpose=purpose, place=place)
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def permutation(count: int, *, seed: int, purpose: int, place: tuple[int, ...]) -> np.ndarray:
    """A random order of 0..count-1, int64."""
    return np.argsort(raw_words(count, seed=seed, purpose=purpose, place=place), kind="stable")


def gumbel(rows: int, columns: int, *, seed: int, purpose: int, place: tuple[int, ...]) -> np.ndarray:
    """Standard Gumbel noise, float32 [rows, columns]: -log(-log(u)), u on a grid of 2^32 points."""
    count = rows * columns
    words = raw_words((count + 1) // 2, seed=seed, purpose=purpose, place=place)
    halves = words.astype("<u8", copy=False).view("<u4")[:count]
    noise = np.empty(count, np.float32)
    for start in range(0, count, _CHUNK):
        part = slice(start, start + _CHUNK)
        u = (halves[part].astype(np.float64) + 0.5) * 2.0**-32
        waiting = (-_log64(u)).astype(np.float32)
        np.negative(_log32(waiting), out=noise[part])
    return noise.reshape(rows, columns)


def _log64(x: np.ndarray) -> np.ndarray:
    """Natural logarithm of positive normal float64, error below 1e-11 of the result near 1."""
    bits = x.view(np.int64)
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52
    mantissa = (bits - (exponent << 52)).view(np.float64)
    return _log_of_parts(mantissa, exponent.astype(np.float64), terms=7, ln2=np.float64(0.6931471805599453))


def _log32(x: np.ndarray) -> np.ndarray:
    """Natural logarithm of positive normal float32."""
    bits = x.view(np.int32)
    exponent = (bits - np.int32(0x3F3504F3)) >> np.int32(23)
    mantissa = (bits - (exponent << np.int32(23))).view(np.float32)
    return _log_of_parts(mantissa, exponent.astype(np.float32), terms=5, ln2=np.float32(0.6931472))


def _log_of_parts(mantissa: np.ndarray, exponent: np.ndarray, *, terms: int, ln2: np.floating) -> np.ndarray:
    """exponent * ln2 + log(mantissa), mantissa in [sqrt(1/2), sqrt(2)), by the series of 2 artanh(s)."""
    kind = mantissa.dtype.type
    s = (mantissa - kind(1)) / (mantissa + kind(1))
    square = s * s
    series = np.full_like(s, kind(1 / (2 * terms - 1)))
    for term in range(terms - 1, 0, -1):
        series *= square
        series += kind(1 / (2 * term - 1))
    series *= s
    series *= kind(2)
    exponent *= ln2
    series += exponent
    return series
