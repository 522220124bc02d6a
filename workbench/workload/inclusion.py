"""Chances that a token takes an expert, from popularities and back.

Top-k of log popularity plus Gumbel noise draws k experts without replacement, each time in proportion to the
popularity of those left. Equivalently every expert waits an exponential time with its popularity w as rate, and the
first k to arrive are taken: expert i is among them if it arrives before the k-th of the others does. E experts.
"""

import numpy as np

MAX_INCLUSION = 0.999
"""An expert that every token takes would need an infinite logit."""
NEVER = -60.0
"""Log popularity, against a sum of 1, of an expert that no token takes."""

_NODES = 64
_ROUNDS = 12
_CELLS = 1 << 22  # values of one table of partial sums: 32 MiB


def inclusion(rates: np.ndarray, top_k: int) -> np.ndarray:
    """Chance of every expert to be among a token's k, float64 [E], summing to k; relative error below 1e-3.

    Averages 1 - exp(-w t) over the time t of the k-th arrival of the others, whose number by t is Poisson-binomial.
    """
    if top_k >= rates.size:
        return np.ones(rates.size)
    if top_k == 1:
        return rates / rates.sum()
    scaled = rates / rates.mean()
    first = waiting_time(scaled, top_k * 10.0 ** (-6 / top_k))
    times = np.exp(np.linspace(first, _late(scaled, top_k), _NODES + 1))
    arrived_NE = np.concatenate([np.zeros((1, rates.size)), _others_arrived(scaled, times[1:-1], top_k),
                                 np.ones((1, rates.size))])  # fmt: skip
    middle = np.sqrt(times[1:] * times[:-1])
    chances = (np.diff(arrived_NE, axis=0) * -np.expm1(-middle[:, None] * scaled)).sum(axis=0)
    return chances * (top_k / chances.sum())


def _late(rates: np.ndarray, top_k: int) -> float:
    """Logarithm of a time by which k are surely there: many are expected, or the k + 1 most popular all came."""
    popular = np.sort(rates)[-top_k - 1]
    expected = min(top_k + 6 * np.sqrt(top_k) + 6, rates.size - 1e-6)
    return min(float(np.log(20 / popular)), waiting_time(rates, expected))


def waiting_time(rates: np.ndarray, arrivals: float) -> float:
    """Logarithm of the time by which ``arrivals`` experts are expected, for rates with a mean of 1."""
    low, high = -60.0, 60.0
    for _ in range(60):
        middle = (low + high) / 2
        short = -np.expm1(-rates * np.exp(middle)).sum() < arrivals
        low, high = (middle, high) if short else (low, middle)
    return low


def _others_arrived(rates: np.ndarray, times: np.ndarray, top_k: int) -> np.ndarray:
    """Chance that at least k of the others are there by each time, float64 [times, E]."""
    step = max(1, _CELLS // (rates.size * top_k))
    parts = [_arrived_part(rates, times[at : at + step], top_k) for at in range(0, times.size, step)]
    return np.concatenate(parts)


def _arrived_part(rates: np.ndarray, times: np.ndarray, top_k: int) -> np.ndarray:
    """Numbers of arrivals below k among the experts before and behind each one, then their sums without it."""
    chance_EN = -np.expm1(-rates[:, None] * times)
    before, behind = _running(chance_EN, top_k), _running(chance_EN[::-1], top_k)[::-1]
    fewer = np.einsum("enk,enk->ne", before, np.cumsum(behind, axis=2)[:, :, ::-1])
    return 1 - fewer


def _running(chance_EN: np.ndarray, top_k: int) -> np.ndarray:
    """Distribution of the number (below k) of arrivals among the experts before each one, [E, times, k]."""
    numbers = np.zeros((*chance_EN.shape, top_k))
    numbers[0, :, 0] = 1
    for expert in range(1, chance_EN.shape[0]):
        chance = chance_EN[expert - 1, :, None]
        numbers[expert] = numbers[expert - 1] * (1 - chance)
        numbers[expert, :, 1:] += numbers[expert - 1, :, :-1] * chance
    return numbers


def logs_of_loads(loads: np.ndarray, top_k: int) -> np.ndarray:
    """Log popularities that make expected loads proportional to ``loads``, float64 [E].

    Loads above MAX_INCLUSION of the tokens are cut there, and the others grow in proportion to fill k. An expert
    without load gets ``NEVER`` less than the sum of the others. Raises ValueError where fewer than k have any.
    """
    some = loads > 0
    if some.sum() < top_k:
        raise ValueError(f"{int(some.sum())} experts have a load, but a token takes top_k {top_k}")
    logs = np.full(loads.size, NEVER)
    logs[some] = _logs_of_chances(_chances(loads[some], top_k), top_k)
    logs[~some] += np.log(np.exp(logs[some]).sum())
    return logs


def _chances(loads: np.ndarray, top_k: int) -> np.ndarray:
    chances = loads / loads.sum() * top_k
    for _ in range(chances.size):
        over = chances >= MAX_INCLUSION
        free = ~over
        if not over.any() or not free.any():
            break
        chances[over] = MAX_INCLUSION
        lack = top_k - MAX_INCLUSION * over.sum() - chances[free].sum()
        if lack <= 1e-12:
            break
        chances[free] *= 1 + lack / chances[free].sum()
    return np.minimum(chances, MAX_INCLUSION)


def _logs_of_chances(chances: np.ndarray, top_k: int) -> np.ndarray:
    """Starts from the rates that arrive by one common time, and corrects them by what ``inclusion`` makes of them."""
    wanted = -np.log1p(-chances)
    if top_k == 1:
        return np.log(chances)
    rates = wanted.copy()
    if top_k >= chances.size:
        return np.log(rates)
    for _ in range(_ROUNDS):
        reached = np.minimum(inclusion(rates, top_k), 1 - 1e-9)
        rates *= wanted / -np.log1p(-reached)
    return np.log(rates)
