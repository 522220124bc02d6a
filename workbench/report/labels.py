"""Short names of cells among their siblings: what varies, nothing else."""

import pandas as pd

from workbench.analysis.columns import varying_columns

WORDS = {"tokens_per_rank": "{} tokens", "num_gpus": "{} GPUs", "nodes": "{} nodes", "ep": "EP {}", "tp": "TP {}",
         "dp": "DP {}", "pp": "PP {}", "seed": "seed {}", "bytes_per_rank": "{} B",
         "redundant_experts": "{} redundant"}  # fmt: skip


def cell_labels(cells: pd.DataFrame, *, without: tuple[str, ...] = ()) -> list[str]:
    """One label a row, made of the columns that vary (but not those in ``without``)."""
    names = [name for name in varying_columns(cells) if name not in ("group", "method", *without)]
    labels = []
    for row in cells[names].astype(object).to_dict("records"):
        words = [WORDS.get(name, "{}").format(row[name]) for name in names if not pd.isna(row[name])]
        labels.append(" · ".join(words))
    return [label or str(row) for label, row in zip(labels, cells["precision"].fillna("all"), strict=True)]
