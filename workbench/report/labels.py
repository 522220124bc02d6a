"""Short names of cells among their siblings: what varies, nothing else."""

import pandas as pd

from workbench.analysis.columns import DESCRIBING, settings, varying_columns
from workbench.spec.base import size_text

WORDS = {"tokens_per_rank": "{} tokens", "num_gpus": "{} GPUs", "nodes": "{} nodes", "ep": "EP {}", "tp": "TP {}",
         "dp": "DP {}", "pp": "PP {}", "seed": "seed {}",
         "redundant_experts": "{} redundant", "kernel": "kernel {}", "overlap": "overlap {}",
         "training_balance": "balance {}", "candidate": "{}", "baseline": "against {}",
         "overlap_degree": "degree {}"}  # fmt: skip


def cell_labels(cells: pd.DataFrame, *, without: tuple[str, ...] = ()) -> list[str]:
    """One label a row, made of what tells the cells apart (but not of the columns in ``without``); the model's name
    if nothing does.
    """
    told = settings(cells)
    alone = cells["model"].fillna(cells["scope"]).fillna("all settings")
    labels = row_labels(told[[name for name in told if name not in without]])
    return [label or str(name) for label, name in zip(labels, alone, strict=True)]


def row_labels(told: pd.DataFrame) -> list[str]:
    """The values of each row as one text; what is off or missing goes without saying."""
    rows = told.astype(object).to_dict("records")
    return [" · ".join(_word(name, value) for name, value in row.items() if _is_said(name, value)) for row in rows]


def setting_text(name: str, value: object) -> str:
    """A setting's value in a table: sizes with their unit, else as it is."""
    return size_text(int(str(value))) if name == "bytes_per_rank" else str(value)


def _is_said(name: str, value: object) -> bool:
    return not pd.isna(value) and (name == "strategy" or str(value) not in ("none", "False"))


def _word(name: str, value: object) -> str:
    if (name, value) == ("strategy", "none"):
        return "no dispatch"
    form = WORDS.get(name) or ("{}" if name in DESCRIBING else f"{name} {{}}")
    return form.format(setting_text(name, value))


def silent_columns(cells: pd.DataFrame, values: pd.DataFrame) -> tuple[str, ...]:
    """Describing columns that could be left out of the labels without two cells of different values sharing one.

    ``values`` has a row for each cell, in the order of ``cells``. Later columns are tried first, so that what a
    model or a machine decides stays named.
    """
    kept = varying_columns(cells)
    keys = cells[kept].astype(object).where(cells[kept].notna(), "-").reset_index(drop=True)
    codes = pd.Series(pd.factorize(pd.MultiIndex.from_frame(values.reset_index(drop=True)))[0])
    silent: list[str] = []
    for name in reversed(kept):
        rest = [other for other in kept if other not in (*silent, name)]
        groups = codes.groupby([keys[other] for other in rest]).nunique() if rest else pd.Series([codes.nunique()])
        if (groups <= 1).all():
            silent.append(name)
    return tuple(silent)
