"""What routing a batch gave. Shapes: R ranks, T tokens of the largest rank, K experts of a token."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RoutedTraffic:
    """Experts and weights of all ranks: ids int32 [R, T, K] (-1 = none), weights float32 [R, T, K].

    Rank r has ``tokens_R[r]`` tokens (int64 [R], T where left out); rows behind them hold -1 and 0. With
    ``chosen_by_experts`` K is ``routing_width``, and a token has any number of experts up to it.
    """

    ids: np.ndarray
    weights: np.ndarray
    chosen_by_experts: bool = False
    tokens_R: np.ndarray = None  # type: ignore[assignment]  # filled in below

    def __post_init__(self) -> None:
        if self.tokens_R is None:
            object.__setattr__(self, "tokens_R", np.full(self.ids.shape[0], self.ids.shape[1], np.int64))

    @property
    def missing(self) -> np.ndarray:
        """bool [R, T, K]: a token of the rank has no expert here."""
        real = np.arange(self.ids.shape[1]) < self.tokens_R[:, None]
        return (self.ids < 0) & real[:, :, None]

    @property
    def dropped_R(self) -> np.ndarray:
        """int64 [R]: (token, expert) pairs dropped; where experts choose, tokens that none chose."""
        missing = self.missing
        return missing.all(axis=2).sum(axis=1) if self.chosen_by_experts else missing.sum(axis=(1, 2))
