"""Short names of cells among their siblings: what varies, nothing else."""

import pandas as pd

from workbench.analysis.columns import varying_columns

WORDS = {"tokens_per_rank": "{} tokens", "num_gpus": "{} GPUs", "nodes": "{} nodes", "ep": "EP {}", "tp": "TP {}",
         "dp": "DP {}", "pp": "PP {}", "seed": "seed {}", "bytes_per_rank": "{} B",
         "redundant_experts": "{} redundant"}  # fmt: skip


def cell_labels(cells: pd.DataFrame, *, without: tuple[str, ...] = ()) -> list[str]:
    """One label a row, made of the columns that vary (but not those in ``without``); the model's name if none does."""
    names = [name for name in varying_columns(cells) if name not in ("group", "method", *without)]
    labels = []
    for row in cells[names].astype(object).to_dict("records"):
        words = [WORDS.get(name, "{}").format(row[name]) for name in names if not pd.isna(row[name])]
        labels.append(" · ".join(words))
    alone = cells["model"].fillna(cells["scope"]).fillna("all settings")
    return [label or str(name) for label, name in zip(labels, alone, strict=True)]


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
