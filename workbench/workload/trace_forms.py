"""What a recorded file may hold, made into one form: a batch a step. docs/traces.md tells how such files come about.

S steps (forward passes), L layers, T tokens, K experts of a token, E experts, P physical experts (replicas counted).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.workload.tensor_files import as_array

COUNTS = ("logical_count", "global_expert_load_window", "global_expert_load", "expert_load_window", "expert_load_pass",
          "global_physical_count", "counts")  # fmt: skip
"""Names under which SGLang's and vLLM's recorders keep tokens per expert, and a plain one."""
PLACEMENTS = ("last_physical_to_logical_map", "physical_to_logical_map")


@dataclass(frozen=True)
class Steps:
    """One array a step, layers first: ids int32 [L, T, K] (-1 = none), counts float64 [L, E], logits float32 [L, T, E].

    ``weights`` go with ids where they were recorded: float32 [L, T, K].
    """

    batches: tuple[np.ndarray, ...]
    weights: tuple[np.ndarray, ...] | None = None


def ids_of(content: Mapping[str, Any]) -> Steps:
    """``ids`` [T, K], [L, T, K] or [S, L, T, K] with ``weights`` of the same shape; columns of a Parquet file; SGLang's
    records per token; or any names of arrays [T, L, K], each of one request."""
    if "records" in content:
        return Steps(tuple(_record_ids(content)))
    if "layer" in content and "token" in content:
        return _table_ids(content)
    if "ids" in content:
        ids = _stacked(_numbers(content, "ids", "iu"), "ids", 3)
        weights = _stacked(_numbers(content, "weights", "f"), "weights", 3) if "weights" in content else None
        if weights is not None and weights.shape != ids.shape:
            raise ValueError(f"weights {list(weights.shape)} are not of the shape of ids {list(ids.shape)}")
        return Steps(_ids(ids), None if weights is None else tuple(weights.astype(np.float32)))
    requests = [_numbers(content, name, "iu") for name in content]
    for name, request in zip(content, requests, strict=True):
        if request.ndim != 3 or request.shape[1:] != requests[0].shape[1:]:
            raise ValueError(
                f"{name} {list(request.shape)} is no [tokens, layers, k] like {next(iter(content))}; other layouts"
                " stand under the name ids: [layers, tokens, k]"
            )
    if not requests:
        raise ValueError("holds no array")
    return Steps(_ids(np.concatenate(requests).transpose(1, 0, 2)[None]))


def counts_of(content: Mapping[str, Any]) -> Steps:
    """Tokens per expert under one of ``COUNTS``, or the only array: [E], [L, E] or [S, L, E]; or SGLang's records.

    Physical experts are added up by a ``physical_to_logical_map`` [L, P] beside them.
    """
    if "records" in content:
        counts = _record_counts(content)
    else:
        found = [name for name in COUNTS if name in content]
        if not found and len(content) != 1:
            raise ValueError(f"has none of {', '.join(COUNTS)}; it has {', '.join(content)}")
        name = found[0] if found else next(iter(content))
        counts = _stacked(_numbers(content, name, "iuf"), name, 2).astype(np.float64)
        if name != "logical_count":
            counts = _logical(counts, content)
    if not np.isfinite(counts).all() or (counts < 0).any():
        raise ValueError("holds counts below 0, or that are no numbers")
    return Steps(tuple(counts))


def logits_of(content: Mapping[str, Any]) -> Steps:
    """``logits`` [T, E], [L, T, E] or [S, L, T, E]; or one array [T, E] a layer, its number last in the name."""
    if "logits" in content:
        logits = _stacked(_numbers(content, "logits", "f"), "logits", 3)
    else:
        layers = {_trailing_number(name): name for name in content}
        if None in layers or not layers:
            raise ValueError(
                f"has no logits, and not a number at the end of every name: {', '.join(content) or 'empty'}"
            )
        parts = [_numbers(content, layers[number], "f") for number in sorted(layers)]
        if len({part.shape for part in parts}) > 1 or parts[0].ndim != 2:
            shapes = ", ".join(str(list(part.shape)) for part in parts[:4])
            raise ValueError(f"its layers are {shapes}; needed is [tokens, experts] of one shape")
        logits = np.stack(parts)[None]
    if not np.isfinite(logits).all():
        raise ValueError("holds logits that are no finite numbers")
    return Steps(tuple(np.ascontiguousarray(logits, np.float32)))


FORMS: dict[str, Callable[[Mapping[str, Any]], Steps]] = {"ids": ids_of, "counts": counts_of, "logits": logits_of}


def _numbers(content: Mapping[str, Any], name: str, kinds: str) -> np.ndarray:
    array = as_array(content[name])
    if array.dtype.kind not in kinds:
        raise ValueError(f"{name} is {array.dtype}; needed are {'integers' if kinds == 'iu' else 'floats'}")
    return array


def _stacked(array: np.ndarray, name: str, axes: int) -> np.ndarray:
    """[S, L, ...] of a batch with ``axes`` axes: missing steps and layers are one."""
    if not axes - 1 <= array.ndim <= axes + 1 or not array.size:
        raise ValueError(f"{name} is {list(array.shape)}; needed are {axes - 1} to {axes + 1} axes, none of length 0")
    return array.reshape((1,) * (axes + 1 - array.ndim) + array.shape)


def _ids(ids_SLTK: np.ndarray) -> tuple[np.ndarray, ...]:
    """Without the columns behind the last one that has any expert: recorders pad them."""
    if ids_SLTK.min() < -1 or ids_SLTK.max() > np.iinfo(np.int32).max:
        raise ValueError("holds ids below -1 or above 2^31 - 1")
    used = np.flatnonzero((ids_SLTK >= 0).any(axis=(0, 1, 2)))
    if not used.size:
        raise ValueError("holds no expert at all")
    return tuple(np.ascontiguousarray(ids_SLTK[..., : used[-1] + 1], np.int32))


def _table_ids(columns: Mapping[str, np.ndarray]) -> Steps:
    """Rows (step, layer, token) with a list ``experts`` (and ``weights``), or rows with one ``expert`` (and ``weight``)
    each; tokens in the order of their number, experts in the order of the rows."""
    wide = "experts" in columns
    if not wide and "expert" not in columns:
        raise ValueError(f"has neither a column experts nor expert; it has {', '.join(columns)}")
    experts = np.atleast_2d(_numbers(columns, "experts" if wide else "expert", "iu").T).T
    name = "weights" if wide else "weight"
    weights = np.atleast_2d(_numbers(columns, name, "f").T).T if name in columns else None
    step = _numbers(columns, "step", "iu") if "step" in columns else np.zeros(len(experts), np.int64)
    layer, token = _numbers(columns, "layer", "iu"), _numbers(columns, "token", "iu")
    order = np.lexsort((np.arange(step.size), token, layer, step))
    batches, kept = [], []
    for number in np.unique(step):
        rows = order[step[order] == number]
        places = np.unique(np.stack([layer[rows], token[rows]]), axis=1).shape[1]
        layers = np.unique(layer[rows]).size
        if places % layers or rows.size % places:
            raise ValueError(
                f"step {number} has {rows.size} rows of {places} tokens in {layers} layers: some are missing"
            )
        shape = (layers, places // layers, -1)
        batches.append(experts[rows].reshape(shape))
        kept.append(None if weights is None else weights[rows].reshape(shape).astype(np.float32))
    return Steps(tuple(_ids(batch[None])[0] for batch in batches), None if weights is None else tuple(kept))


def _record_ids(content: Mapping[str, Any]) -> list[np.ndarray]:
    """SGLang's per_token records: ``topk_ids_of_layer`` [L, T, K] of physical experts."""
    batches = []
    for record in _records(content, "topk_ids_of_layer"):
        ids = as_array(record["topk_ids_of_layer"])
        if ids.ndim != 3 or ids.dtype.kind not in "iu":
            raise ValueError(f"topk_ids_of_layer is {ids.dtype} {list(ids.shape)}; needed are ids [layers, tokens, k]")
        if ids.shape[1]:
            batches.append(_ids(_to_logical(ids, content)[None])[0])
    return batches


def _record_counts(content: Mapping[str, Any]) -> np.ndarray:
    """SGLang's per_pass records: ``global_physical_count`` [L, P], those of one pass added up."""
    by_pass: dict[int, np.ndarray] = {}
    for record in _records(content, "global_physical_count"):
        counts = _stacked(as_array(record["global_physical_count"]), "global_physical_count", 2)[0].astype(np.float64)
        number = int(record.get("forward_pass_id", len(by_pass)))
        by_pass[number] = by_pass[number] + counts if number in by_pass else counts
    return _logical(np.stack([by_pass[number] for number in sorted(by_pass)]), content)


def _records(content: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    records = content["records"]
    if not isinstance(records, list) or not records or not all(isinstance(r, Mapping) and name in r for r in records):
        raise ValueError(f"its records have no {name}; was another expert_distribution_recorder_mode meant?")
    return records


def _placement(content: Mapping[str, Any], shape: tuple[int, ...]) -> np.ndarray | None:
    name = next((name for name in PLACEMENTS if name in content), None)
    if name is None:
        return None
    placement = as_array(content[name])
    if placement.ndim != 2 or placement.shape[0] != shape[0] or placement.min() < 0:
        raise ValueError(f"{name} is {list(placement.shape)}; needed is [{shape[0]} layers, physical experts]")
    return placement


def _logical(counts_SLP: np.ndarray, content: Mapping[str, Any]) -> np.ndarray:
    placement = _placement(content, counts_SLP.shape[1:])
    if placement is None:
        return counts_SLP
    if placement.shape[1] != counts_SLP.shape[2]:
        raise ValueError(f"counts of {counts_SLP.shape[2]} experts have a map of {placement.shape[1]}")
    logical = np.zeros((*counts_SLP.shape[:2], int(placement.max()) + 1))
    for layer, owner in enumerate(placement):
        np.add.at(logical, (slice(None), layer, owner), counts_SLP[:, layer])
    return logical


def _to_logical(ids_LTK: np.ndarray, content: Mapping[str, Any]) -> np.ndarray:
    placement = _placement(content, ids_LTK.shape)
    if placement is None:
        return ids_LTK
    if ids_LTK.max() >= placement.shape[1]:
        raise ValueError(f"physical expert {int(ids_LTK.max())} is not in the map of {placement.shape[1]}")
    layers = np.arange(ids_LTK.shape[0])[:, None, None]
    return np.where(ids_LTK >= 0, placement[layers, np.maximum(ids_LTK, 0)], -1)


def _trailing_number(name: str) -> int | None:
    digits = name[len(name.rstrip("0123456789")) :]
    return int(digits) if digits else None
