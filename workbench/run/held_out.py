"""Predictions of measured layers by constants and curves that were made without them.

Frames have the columns of ``workbench.simulate.published_moe.moe_layers``; rows above the part's physical peak must be
gone before. Every function returns a frame of some of the rows with ``predicted_us`` and ``split``, the name of what
was left out with the row.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd

from workbench.simulate.fitting import FEWEST_ROWS, fit, take
from workbench.simulate.interpolation import left_out
from workbench.simulate.kernel_model import Constants, Peaks, Work, layer_us
from workbench.simulate.published_moe import CURVE, FAMILY, SHAPE, peaks_over, work_over

FOLDS = 5
SEED = 0
POINT = (*CURVE[1:], "tokens")
Family = tuple[str, ...]


@dataclass(frozen=True)
class Rows:
    """Measured layers with their work and peaks as arrays."""

    frame: pd.DataFrame
    work: Work
    peaks: Peaks
    us: np.ndarray

    def take(self, chosen: np.ndarray) -> "Rows":
        """The rows at positions ``chosen``."""
        peaks = Peaks(*(getattr(self.peaks, one.name)[chosen] for one in fields(Peaks)))
        return Rows(self.frame.iloc[chosen], take(self.work, chosen), peaks, self.us[chosen])

    def modelled_us(self, constants: Constants) -> np.ndarray:
        return layer_us(constants, self.work, self.peaks)


def rows_of(frame: pd.DataFrame) -> Rows:
    """Rows of a frame, in its order."""
    frame = frame.reset_index(drop=True)
    return Rows(frame, work_over(frame), peaks_over(frame), frame["us"].to_numpy(float))


def families(rows: Rows) -> dict[Family, np.ndarray]:
    """Positions of the rows of each family."""
    return dict(rows.frame.groupby(list(FAMILY), dropna=False, sort=True).indices)


def fitted(rows: Rows, train: np.ndarray, *, kin: np.ndarray | None = None) -> Constants | None:
    """Constants of the rows ``train``; where they are few, held near those of the rows ``kin`` of the same kernel in
    other formats. None where both are too few."""
    if len(train) >= FEWEST_ROWS:
        chosen = rows.take(train)
        return fit(chosen.work, chosen.peaks, chosen.us)
    if kin is None or len(kin) < FEWEST_ROWS:
        return None
    chosen, others = rows.take(train), rows.take(kin)
    like = fit(others.work, others.peaks, others.us)
    return fit(chosen.work, chosen.peaks, chosen.us, like=like) if len(train) else like


def kin_of(rows: Rows, family: Family) -> np.ndarray:
    """Positions of all rows of the family's kernel on its GPU."""
    frame = rows.frame
    return np.flatnonzero(frame["hardware"].eq(family[0]) & frame["kernel"].eq(family[1]))


def by_fold(rows: Rows) -> pd.DataFrame:
    """A fifth of a family's rows left out at a time, chosen at random by a fixed seed."""
    return _left_out(rows, lambda frame: np.random.default_rng(SEED).permutation(len(frame)) % FOLDS)


def by_shape(rows: Rows) -> pd.DataFrame:
    """All rows of a shape (hidden, intermediate, top-k, experts) left out at a time; families of one shape are passed
    over. Adds ``shapes``, how many the family has."""
    found = _left_out(rows, shape_names)
    return found[found["shapes"] > 1]


def shape_names(frame: pd.DataFrame) -> np.ndarray:
    return frame[list(SHAPE)].astype(str).agg("/".join, axis=1).to_numpy()


def _left_out(rows: Rows, groups_of: Callable[[pd.DataFrame], np.ndarray]) -> pd.DataFrame:
    parts = []
    for family, at in families(rows).items():
        frame = rows.frame.iloc[at]
        groups, shapes = groups_of(frame), frame[list(SHAPE)].drop_duplicates().shape[0]
        if groups_of is shape_names and shapes < 2:
            continue
        kin = kin_of(rows, family) if len(at) < 2 * FEWEST_ROWS else None
        for group in sorted(set(groups)):
            test, train = at[groups == group], at[groups != group]
            constants = fitted(rows, train, kin=None if kin is None else np.setdiff1d(kin, test))
            if constants is None:
                continue
            chosen = rows.take(test)
            parts.append(
                chosen.frame.assign(predicted_us=chosen.modelled_us(constants), split=str(group), shapes=shapes)
            )
    return pd.concat(parts)


def by_token(rows: Rows) -> pd.DataFrame:
    """A token count left out of each curve with all distributions of that point; adds ``is_end``.

    The constants behind a point are fitted to the rows of every other token count, so that they too have not seen it:
    those at even places of the sorted counts serve those at odd places.
    """
    parts = []
    for family, at in families(rows).items():
        tokens = rows.frame["tokens"].iloc[at].to_numpy()
        counts = np.sort(np.unique(tokens))
        kin = kin_of(rows, family) if len(at) < 4 * FEWEST_ROWS else None
        for served in (counts[::2], counts[1::2]):
            held = np.isin(tokens, served)
            others = None if kin is None else kin[~rows.frame["tokens"].iloc[kin].isin(served).to_numpy()]
            constants = fitted(rows, at[~held], kin=others)
            if constants is not None:
                parts.append(_interpolated(rows.take(at), constants, served=served))
    return pd.concat(parts)


def _interpolated(rows: Rows, constants: Constants, *, served: np.ndarray) -> pd.DataFrame:
    frame, modelled = rows.frame, rows.modelled_us(constants)
    tokens, log_ratio = frame["tokens"].to_numpy(), np.log(rows.us / modelled)
    given, ends, kept = np.zeros(len(frame)), np.zeros(len(frame), bool), np.isin(tokens, served)
    for at in frame.groupby(list(CURVE), dropna=False).indices.values():
        ordered = at[np.argsort(tokens[at])]
        if len(ordered) < 3:
            kept[ordered] = False
            continue
        given[ordered], ends[ordered] = left_out(np.log(tokens[ordered]), log_ratio[ordered])
    done = frame.assign(predicted_us=modelled * np.exp(given), is_end=ends, split=frame["tokens"].astype(str))
    return done[kept]


def transferred(rows: Rows, source: str, target: str) -> pd.DataFrame:
    """Rows of ``target`` predicted from the same points of ``source``, scaled by the model's times under both peaks.

    The constants are fitted to the source alone. Adds ``copied_us``, the source's time unchanged.
    """
    parts = []
    there = rows.frame[rows.frame["hardware"] == target].reset_index(names="position")
    for family, at in families(rows).items():
        if family[0] != source:
            continue
        mine = rows.frame.iloc[at].reset_index(names="own")
        pairs = mine[["own", *POINT]].merge(there[["position", *POINT]], on=list(POINT))
        constants = fitted(rows, at) if len(pairs) else None
        if constants is None:
            continue
        before, after = rows.take(pairs["own"].to_numpy()), rows.take(pairs["position"].to_numpy())
        predicted = before.us * after.modelled_us(constants) / before.modelled_us(constants)
        parts.append(after.frame.assign(predicted_us=predicted, copied_us=before.us, split=source))
    return pd.concat(parts) if parts else rows.frame.head(0).assign(predicted_us=0.0, copied_us=0.0, split="")
