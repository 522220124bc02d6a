"""Small files of the forms in which engines leave their traffic."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.numpy import save_file

LAYERS, TOKENS, EXPERTS, TOP_K = 3, 40, 16, 4


def chosen(*, layers: int = LAYERS, tokens: int = TOKENS, seed: int = 0, experts: int = EXPERTS) -> np.ndarray:
    """ids int32 [L, T, K], no expert twice."""
    drawn = np.random.default_rng(seed).random((layers, tokens, experts)) + np.linspace(0, 1, experts)
    return np.argsort(-drawn, axis=2)[..., :TOP_K].astype(np.int32)


def counts(*, steps: int = 2, layers: int = LAYERS, experts: int = EXPERTS) -> np.ndarray:
    """int32 [S, L, E]: loads that rise with the expert's number."""
    base = np.arange(1, experts + 1) * 20
    return np.stack([np.stack([np.roll(base, step + layer) for layer in range(layers)]) for step in range(steps)])


def sglang_stat(path: Path, logical: np.ndarray) -> Path:
    """``--expert-distribution-recorder-mode stat``: a buffer of steps, unused ones zero."""
    padded = np.concatenate([logical, np.zeros((3, *logical.shape[1:]), logical.dtype)])
    content = {"rank": 0, "logical_count": torch.from_numpy(padded.astype(np.int32)),
               "average_utilization_rate_over_window": None}  # fmt: skip
    torch.save(content, path)
    return path


def sglang_json(path: Path, logical: np.ndarray) -> Path:
    """What ``--init-expert-location file.json`` takes."""
    path.write_text(json.dumps({"logical_count": logical.tolist()}))
    return path


def sglang_per_pass(path: Path, physical: np.ndarray, placement: np.ndarray) -> Path:
    """``per_pass`` of two ranks put together: each pass in two records."""
    records = [
        {"forward_pass_id": 7 + step, "rank": rank, "gatherer_key": "primary",
         "global_physical_count": torch.from_numpy(part.astype(np.int32))}
        for step, whole in enumerate(physical)
        for rank, part in enumerate((whole // 2, whole - whole // 2))
    ]  # fmt: skip
    torch.save({"records": records, "last_physical_to_logical_map": torch.from_numpy(placement)}, path)
    return path


def sglang_per_token(path: Path, ids_per_pass: list[np.ndarray], placement: np.ndarray) -> Path:
    """``per_token``: physical ids in eight columns, those beyond top-k unused."""
    records = []
    for number, ids in enumerate(ids_per_pass):
        wide = np.full((*ids.shape[:2], 8), -1, np.int32)
        wide[..., : ids.shape[2]] = ids
        records.append(
            {"forward_pass_id": number, "rank": 0, "gatherer_key": "primary", "input_ids": list(range(ids.shape[1])),
             "positions": list(range(ids.shape[1])), "extend_seq_lens": None, "forward_mode": 1,
             "topk_ids_of_layer": torch.from_numpy(wide), "misc_objects": []}
        )  # fmt: skip
    torch.save({"records": records, "last_physical_to_logical_map": torch.from_numpy(placement)}, path)
    return path


def vllm_window(path: Path, physical: np.ndarray, placement: np.ndarray) -> Path:
    """EPLB's ``expert_load_window`` with its ``physical_to_logical_map``, unused steps zero."""
    padded = np.concatenate([physical, np.zeros((2, *physical.shape[1:]), physical.dtype)]).astype(np.int32)
    save_file({"expert_load_window": padded, "physical_to_logical_map": placement.astype(np.int64)}, path)
    return path


def requests_npz(path: Path, ids: np.ndarray) -> Path:
    """``routed_experts`` [tokens, layers, k] of two requests, as SGLang and vLLM return them."""
    by_token = ids.transpose(1, 0, 2).astype(np.uint8)
    np.savez(path, request_0=by_token[:25], request_1=by_token[25:])
    return path


def parquet(path: Path, ids: np.ndarray, weights: np.ndarray | None = None, *, long: bool, shuffled: bool) -> Path:
    """Two steps of half the tokens each."""
    layer, token = (axis.ravel() for axis in np.indices(ids.shape[:2]))
    step, token = token // (ids.shape[1] // 2), token % (ids.shape[1] // 2)
    table = {"step": step, "layer": layer, "token": token}
    flat = ids.reshape(-1, ids.shape[2])
    if long:
        table = {name: np.repeat(values, ids.shape[2]) for name, values in table.items()} | {"expert": flat.ravel()}
        if weights is not None:
            table["weight"] = weights.ravel()
    else:
        table |= {"experts": flat.tolist()}
        if weights is not None:
            table["weights"] = weights.reshape(flat.shape).tolist()
    whole = pa.table(table)
    if shuffled:
        whole = whole.take(np.random.default_rng(1).permutation(whole.num_rows))
    pq.write_table(whole, path)
    return path
