"""Which rows no other row beats in everything."""

import numpy as np


def pareto_front(figures_NM: np.ndarray) -> np.ndarray:
    """Bool [N]: rows of ``figures_NM`` (more is better in each of M columns) that no other row equals or exceeds in all
    columns and exceeds in one."""
    front = np.ones(len(figures_NM), bool)
    for row, figures in enumerate(figures_NM):
        better = (figures_NM >= figures).all(axis=1) & (figures_NM > figures).any(axis=1)
        front[row] = not better.any()
    return front
