"""Which columns tell cells apart, and the dotted paths of the planned cell behind them."""

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

DESCRIBING: tuple[str, ...] = (
    "group", "engine", "method", "kernel", "model", "scope", "hardware", "device", "num_gpus", "nodes",
    "gpus_per_node", "ep", "tp", "dp", "pp", "phase", "tokens_per_rank", "bytes_per_rank", "router", "skew", "data",
    "precision", "scale_rule", "strategy", "dispatch_dtype", "combine_dtype", "overlap", "overlap_degree",
    "placement", "redundant_experts", "training_balance", "seed",
)  # fmt: skip
"""Columns that say what a cell is, as opposed to what it gave."""

COLUMN_PATHS: dict[str, str] = {
    "model": "model", "scope": "scope", "hardware": "cluster.hardware", "nodes": "cluster.nodes",
    "gpus_per_node": "cluster.gpus_per_node", "ep": "parallel.ep", "tp": "parallel.tp", "dp": "parallel.dp",
    "pp": "parallel.pp", "phase": "workload.phase", "tokens_per_rank": "workload.tokens_per_rank",
    "bytes_per_rank": "scope.bytes_per_rank", "router": "router", "skew": "workload.skew", "data": "workload.data",
    "seed": "workload.seed", "scale_rule": "precision.scale_rule", "strategy": "dispatch.strategy",
    "dispatch_dtype": "dispatch.dispatch_dtype", "combine_dtype": "dispatch.combine_dtype",
    "overlap": "dispatch.overlap", "placement": "balance.placement", "training_balance": "balance.training",
}  # fmt: skip
"""Where a column of ``cells`` comes from in ``cell_json``."""


IMPLIED = {"scale_rule": "precision"}
"""A column that says nothing new when it follows from another; a recipe brings its own scale rule."""


def varying_columns(cells: pd.DataFrame, *, among: Sequence[str] = DESCRIBING) -> list[str]:
    """Those of ``among`` that hold more than one value; a column that says the same as one before it is left out."""
    found: list[str] = []
    codes: list[tuple[int, ...]] = []
    for name in among:
        if name not in cells or cells[name].nunique(dropna=False) < 2 or _is_implied(cells, name):
            continue
        code = tuple(pd.factorize(cells[name].astype(object).where(cells[name].notna(), None))[0])
        if code not in codes:
            found.append(name)
            codes.append(code)
    return found


def settings(cells: pd.DataFrame) -> pd.DataFrame:
    """What tells the cells apart, a column each, on the index of ``cells``.

    The describing columns that vary, without group and method; where these leave cells alike, also the dotted paths
    of the planned cells that differ between them, then the group, at last the cell's id.
    """
    shown = cells[varying_columns(cells, among=[name for name in DESCRIBING if name not in ("group", "method")])]
    if not _alike(shown).any():
        return shown
    shown = pd.concat([shown, _hidden(cells, shown)], axis=1)
    for name in ("group", "cell_id"):
        if _alike(shown).any() and cells[name].nunique() > 1:
            shown = shown.assign(**{name: cells[name]})
    return shown


def _alike(shown: pd.DataFrame) -> pd.Series:
    if shown.empty and not len(shown.columns):
        return pd.Series(len(shown) > 1, index=shown.index)
    return shown.astype(object).where(shown.notna(), "-").duplicated(keep=False)


def _hidden(cells: pd.DataFrame, shown: pd.DataFrame) -> pd.DataFrame:
    """Paths of the planned cells that differ between rows alike in ``shown``; one that says the same is left out."""
    flat = pd.DataFrame([_leaves(cell) for cell in planned_cells(cells)], index=cells.index)
    alike = flat[_alike(shown)]
    told = {"cell_id", "scenario", "group", "kernel", "method", "engine", *COLUMN_PATHS.values()}
    free = [path for path in flat if not any(path == name or path.startswith(f"{name}.") for name in told - {"model"})]
    looks = shown.loc[alike.index].astype(str).apply(tuple, axis=1) if len(shown.columns) else ["all"] * len(alike)
    counts = alike[free].groupby(pd.Series(looks, index=alike.index)).nunique(dropna=False).max()
    differing = [path for path in free if counts[path] > 1]
    kept = varying_columns(flat, among=differing)
    tails = [path.rpartition(".")[2] for path in kept]
    names = [
        tail if tails.count(tail) == 1 and tail not in cells else path for path, tail in zip(kept, tails, strict=True)
    ]
    return flat[kept].set_axis(names, axis=1)


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    leaves: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            leaves |= _leaves(value, f"{prefix}{key}.")
        else:
            leaves[f"{prefix}{key}"] = value_label(value)
    return leaves


def _is_implied(cells: pd.DataFrame, name: str) -> bool:
    by = IMPLIED.get(name)
    return (
        by is not None and by in cells and bool((cells.groupby(by, dropna=False)[name].nunique(dropna=False) < 2).all())
    )


def planned_cells(cells: pd.DataFrame) -> list[dict[str, Any]]:
    """The planned cell of each row, from ``cell_json``; empty where it is missing."""
    return [json.loads(text) if isinstance(text, str) else {} for text in cells["cell_json"]]


def dotted_path(name: str, planned: Sequence[Mapping[str, Any]]) -> str:
    """The path that a column's name or a dotted path means.

    Raises ValueError with the nearest known paths when no cell has it.
    """
    path = COLUMN_PATHS.get(name, name)
    if any(has_path(cell, path) for cell in planned):
        return path
    known = sorted({known for cell in planned for known in _paths(cell)} | set(COLUMN_PATHS))
    nearest = difflib.get_close_matches(name, known, n=5, cutoff=0.4)
    raise ValueError(f"--by {name}: no cell has that path; nearest: {', '.join(nearest or known[:5])}")


def has_path(tree: Any, path: str) -> bool:
    for key in path.split("."):
        if not isinstance(tree, Mapping) or key not in tree:
            return False
        tree = tree[key]
    return True


def value_at(tree: Any, path: str) -> Any:
    """The value at a dotted path, None where there is none."""
    for key in path.split("."):
        if not isinstance(tree, Mapping):
            return None
        tree = tree.get(key)
    return tree


def without_paths(tree: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """The tree with the values at ``paths`` taken out."""
    heads = {path.partition(".")[0] for path in paths}
    pruned: dict[str, Any] = {}
    for key, value in tree.items():
        tails = [path.partition(".")[2] for path in paths if path.partition(".")[0] == key]
        if key in heads and "" in tails:
            continue
        pruned[key] = without_paths(value, tails) if tails and isinstance(value, Mapping) else value
    return pruned


def value_label(value: Any) -> str:
    """A value as a person would write it: a recipe's or part's name, a tagged union's kind and its fields."""
    if not isinstance(value, Mapping):
        return "none" if value is None else str(value)
    if "name" in value:
        return str(value["name"])
    rest = [str(field) for key, field in value.items() if key != "kind" and field is not None]
    if "kind" in value:
        return f"{value['kind']}({', '.join(rest)})" if rest else str(value["kind"])
    return json.dumps(value, sort_keys=True)


def _paths(tree: Mapping[str, Any], prefix: str = "") -> list[str]:
    paths: list[str] = []
    for key, value in tree.items():
        paths.append(prefix + key)
        if isinstance(value, Mapping):
            paths += _paths(value, f"{prefix}{key}.")
    return paths
