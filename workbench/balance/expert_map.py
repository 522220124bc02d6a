"""Where every expert and its replicas live. E experts, R ranks, S slots a rank; slot rank * S + s over the group."""

from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class ExpertMap:
    """``slots`` int32 [R, S]: the expert in every slot. Every expert has at least one.

    ``split`` says how an expert's pairs are dealt over its replicas: ``even``, or ``lp`` by the linear program of
    ``split`` for each batch. ``scheme`` is the way that ``eplb`` went: hierarchical or global.
    """

    slots: np.ndarray
    split: Literal["even", "lp"] = "even"
    scheme: Literal["hierarchical", "global"] | None = None

    @property
    def num_ranks(self) -> int:
        return self.slots.shape[0]

    @property
    def slots_per_rank(self) -> int:
        return self.slots.shape[1]

    @property
    def copies_E(self) -> np.ndarray:
        """Slots of each expert, int64 [E]."""
        return np.bincount(self.slots.ravel())


def even_rank_loads(expert_map: ExpertMap, loads: np.ndarray) -> np.ndarray:
    """Load of each rank, float64 [R], when every expert's load [E] is shared evenly by its replicas."""
    return (np.asarray(loads, float) / expert_map.copies_E)[expert_map.slots].sum(axis=1)
