"""Fits the constants of a family of kernels to measured layers: least squares of logs, robust, with weak priors."""

from dataclasses import astuple, fields

import numpy as np
from scipy.optimize import least_squares

from workbench.simulate.kernel_model import Constants, Peaks, Work, layer_us

NAMES = ("launch_us", "memory", "math", "sharpness", "activations", "others", "per_expert_us")
START = np.log([15.0, 1.35, 2.0, 2.0, 1.0, 0.3, 0.1])
LOWEST = np.log([1.0, 0.8, 0.9, 0.1, 0.01, 1e-3, 1e-3])
HIGHEST = np.log([1e4, 12.0, 20.0, 30.0, 30.0, 100.0, 1e3])
WIDTH = np.array([0.8, 0.5, 0.6, 0.7, 1.0, 2.0, 1.5])
"""How far, in log space, a constant may lie from START before that costs as much as an error of 1 / STIFFNESS rows."""
STIFFNESS = 0.5
SMALL_ERROR = 0.05
ENOUGH = 1e-4
TILES = (16, 64, 128)
FEWEST_ROWS = 9


def take(work: Work, chosen: np.ndarray) -> Work:
    """The rows ``chosen`` (mask or indices) of work over arrays; what all rows share stays."""
    values = {one.name: getattr(work, one.name) for one in fields(work)}
    return Work(**{name: value[chosen] if np.ndim(value) else value for name, value in values.items()})


def fit(work: Work, peaks: Peaks, us: np.ndarray, *, like: Constants | None = None) -> Constants:
    """Constants that describe ``us`` [rows] best; the tile is the one of TILES with the least loss.

    The loss is soft-L1 of the log ratio, so neither slow rows nor strange ones decide. Weak priors around START, or
    around the constants of kernels that these are ``like``, hold what a few shapes leave open. Raises ValueError for
    fewer than FEWEST_ROWS rows that are like no others.
    """
    if len(us) < FEWEST_ROWS and like is None:
        raise ValueError(f"{len(us)} rows are too few to fit {len(NAMES)} constants; {FEWEST_ROWS} are needed")
    log_us, best, least = np.log(us), None, np.inf
    start = START if like is None else np.clip(np.log(astuple(like)[:-1]), LOWEST, HIGHEST)
    for tile in TILES if like is None else (like.tile,):

        def residuals(logs: np.ndarray, tile: int = tile) -> np.ndarray:
            predicted = layer_us(Constants(*np.exp(logs), tile=tile), work, peaks)
            return np.concatenate([np.log(predicted) - log_us, STIFFNESS * (logs - start) / WIDTH])

        found = least_squares(
            residuals,
            start,
            bounds=(LOWEST, HIGHEST),
            loss="soft_l1",
            f_scale=SMALL_ERROR,
            max_nfev=60,
            ftol=ENOUGH,
            xtol=ENOUGH,
        )
        if found.cost < least:
            best, least = Constants(*(float(value) for value in np.exp(found.x)), tile=tile), found.cost
    assert best is not None
    return best
