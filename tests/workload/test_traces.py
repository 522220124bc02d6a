"""Recorded traffic: the forms of the engines' recorders, and one clear message for a file that is none of them."""

import hashlib
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from tests.workload import trace_files as files
from tests.workload.factory import make_cell
from workbench.plan import plan_cells
from workbench.spec.errors import Unsupported
from workbench.spec.router import Recorded
from workbench.spec.scenario_file import parse_scenario
from workbench.workload.inclusion import inclusion
from workbench.workload.loads import slot_counts
from workbench.workload.recording import load_recording, recording_of, trace_flags
from workbench.workload.skew import popularity
from workbench.workload.traffic import rank_logits, rank_router, route_all, route_rank

PLACEMENT = np.array([[*range(16), 3, 5], [*range(16), 0, 1], [*range(15, -1, -1), 2, 2]])
"""[layers, physical experts]: two replicas a layer."""


def trace_cell(path: Path, form: str, *, router=None, layers=None, steps=None, cell_layers=1, cell_steps=1, **fields):
    fields = {"tokens": 12, "experts": files.EXPERTS, "top_k": files.TOP_K} | fields
    skew = {"kind": "trace", "path": str(path), "form": form, "layers": layers, "steps": steps}
    cell = make_cell(skew=skew, **fields)
    workload = cell.workload.model_copy(update={"layers": cell_layers, "steps": cell_steps})
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
    router = Recorded() if form != "logits" and router is None else router or cell.router
    return cell.model_copy(update={"router": router, "workload": workload, "trace_digest": digest})


def physical_of(ids: np.ndarray) -> np.ndarray:
    """Some physical expert of each logical one: every second token takes the last replica."""
    result = ids.copy()
    for layer, owners in enumerate(PLACEMENT):
        for token in range(ids.shape[1]):
            for k, expert in enumerate(ids[layer, token]):
                places = np.flatnonzero(owners == expert)
                result[layer, token, k] = places[-1 if token % 2 else 0]
    return result


def write_ids(form: str, folder: Path, ids: np.ndarray) -> Path:
    if form == "npz":
        np.savez(folder / "t.npz", ids=ids)
    elif form == "npy":
        np.save(folder / "t.npy", ids.transpose(1, 0, 2))
    elif form == "requests":
        return files.requests_npz(folder / "t.npz", ids)
    elif form == "safetensors":
        save_file({"ids": ids.astype(np.int16)}, folder / "t.safetensors")
    elif form == "per_token":
        return files.sglang_per_token(folder / "t.pt", [physical_of(ids)], PLACEMENT)
    return next(folder.glob("t.*"))


@pytest.mark.parametrize("form", ["npz", "npy", "requests", "safetensors", "per_token"])
def test_ids_are_dealt_to_the_ranks_in_turn(form, tmp_path):
    ids = files.chosen(tokens=48)
    cell = trace_cell(write_ids(form, tmp_path, ids), "ids")
    for layer in range(files.LAYERS):
        routed = route_all(cell, layer=layer)
        np.testing.assert_array_equal(routed.ids.reshape(48, 4), ids[layer])
        np.testing.assert_allclose(routed.weights, 0.25)
    assert trace_flags(cell) == []
    np.testing.assert_array_equal(route_rank(cell, rank=2).ids.numpy(), ids[0, 24:36])
    assert rank_logits(cell, rank=2).shape == (12, files.EXPERTS)
    route = rank_router(cell, rank=2)
    np.testing.assert_array_equal(route(torch.zeros(12, files.EXPERTS)).ids.numpy(), ids[0, 24:36])


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("long", [False, True])
def test_ids_of_a_table(long, shuffled, tmp_path):
    ids = files.chosen(tokens=40)
    weights = np.random.default_rng(1).random(ids.shape).astype(np.float32)
    path = files.parquet(tmp_path / "t.parquet", ids, weights, long=long, shuffled=shuffled and not long)
    cell = trace_cell(path, "ids", tokens=5, cell_steps=2)
    for step in range(2):
        routed = route_all(cell, layer=2, step=step)
        half = slice(20 * step, 20 * step + 20)
        np.testing.assert_array_equal(routed.ids.reshape(20, 4), ids[2, half])
        np.testing.assert_array_equal(routed.weights.reshape(20, 4), weights[2, half])


def test_short_traces_repeat_and_say_so(tmp_path):
    ids = files.chosen(tokens=30)
    np.savez(tmp_path / "t.npz", ids=ids)
    cell = trace_cell(tmp_path / "t.npz", "ids", cell_steps=3)
    routed = route_all(cell).ids.reshape(48, 4)
    np.testing.assert_array_equal(routed, ids[0, np.arange(48) % 30])
    np.testing.assert_array_equal(route_all(cell, step=2).ids.reshape(48, 4), ids[0, (np.arange(48) + 96) % 30])
    assert trace_flags(cell) == ["trace_steps=1", "trace_tokens=30"]
    part = route_all(cell, max_tokens=5).ids
    np.testing.assert_array_equal(part, route_all(cell).ids[:, :5])


def test_ragged_ranks_take_the_trace_without_gaps(tmp_path):
    ids = files.chosen(tokens=48)
    np.savez(tmp_path / "t.npz", ids=ids)
    cell = trace_cell(tmp_path / "t.npz", "ids")
    workload = type(cell.workload).model_validate(
        cell.workload.model_dump() | {"sources": {"kind": "empty_rank", "rank": 1}}
    )
    routed = route_all(cell.model_copy(update={"workload": workload}))
    np.testing.assert_array_equal(routed.ids[[0, 2, 3]].reshape(36, 4), ids[0, :36])


def test_dropped_choices_stay_dropped_and_capacity_drops_more(tmp_path):
    ids = files.chosen(tokens=48)
    ids[:, ::3, 1] = -1
    np.savez(tmp_path / "t.npz", ids=ids)
    cell = trace_cell(tmp_path / "t.npz", "ids")
    routed = route_all(cell)
    assert routed.dropped_R.tolist() == [4] * 4
    np.testing.assert_allclose(routed.weights.sum(axis=2), 1, rtol=1e-6)
    assert (routed.weights[routed.ids < 0] == 0).all()
    tight = cell.model_copy(update={"balance": cell.balance.model_copy(update={"capacity": 1.0})})
    assert route_all(tight).dropped_R.sum() > 16


@pytest.mark.parametrize("form", ["stat", "json", "per_pass", "vllm", "npz"])
def test_counts_become_loads_in_their_proportion(form, tmp_path):
    logical = files.counts()
    physical = np.zeros((*logical.shape[:2], 18), np.int64)
    for layer, owners in enumerate(PLACEMENT):
        copies = np.bincount(owners, minlength=16)
        for place, owner in enumerate(owners):
            first = place == np.flatnonzero(owners == owner)[0]
            rest = logical[:, layer, owner] // copies[owner]
            physical[:, layer, place] = rest + (logical[:, layer, owner] - rest * copies[owner] if first else 0)
    if form == "npz":
        np.savez(tmp_path / "t.npz", counts=logical)
    path = {
        "stat": lambda: files.sglang_stat(tmp_path / "t.pt", logical),
        "json": lambda: files.sglang_json(tmp_path / "t.json", logical),
        "per_pass": lambda: files.sglang_per_pass(tmp_path / "t.pt", physical, PLACEMENT),
        "vllm": lambda: files.vllm_window(tmp_path / "t.safetensors", physical, PLACEMENT),
        "npz": lambda: tmp_path / "t.npz",
    }[form]()
    cell = trace_cell(path, "counts", tokens=40_000, cell_layers=3, cell_steps=2)
    recording = recording_of(cell)
    for step, layer in ((0, 0), (1, 2)):
        np.testing.assert_array_equal(recording.batch(layer, step), logical[step, layer])
    got = slot_counts(route_all(cell, layer=2, step=1).ids, 16)
    wanted = logical[1, 2] / logical[1, 2].sum() * got.sum()
    assert (np.abs(got - wanted) <= np.maximum(0.02 * wanted, 4 * np.sqrt(wanted))).all()
    assert (np.sort(route_all(cell).ids, axis=2)[..., 1:] > np.sort(route_all(cell).ids, axis=2)[..., :-1]).all()
    assert trace_flags(cell) == []


def test_experts_without_a_count_get_nothing(tmp_path):
    logical = np.zeros((1, 16), np.int64)
    logical[0, [1, 4, 9, 12, 15]] = [5, 5, 5, 5, 1]
    np.savez(tmp_path / "t.npz", counts=logical)
    cell = trace_cell(tmp_path / "t.npz", "counts", tokens=2000)
    got = slot_counts(route_all(cell).ids, 16)
    assert set(np.flatnonzero(got)) == {1, 4, 9, 12, 15}
    chance = inclusion(np.exp(popularity(cell.workload.skew, _crowd(cell)).astype(float)), 4)
    np.testing.assert_allclose(got / 8000, chance, atol=0.03)


def _crowd(cell):
    from workbench.workload.source import source_of

    return source_of(cell, 0, 0).crowd


@pytest.mark.parametrize("form", ["npz", "bf16", "layers"])
def test_logits_go_through_the_cells_router(form, tmp_path):
    logits = np.random.default_rng(0).standard_normal((files.LAYERS, 48, 16)).astype(np.float32)
    if form == "npz":
        path = tmp_path / "t.npz"
        np.savez(path, logits=logits)
    else:
        path, parts = tmp_path / "t.safetensors", torch.from_numpy(logits).to(torch.bfloat16)
        logits = parts.float().numpy()
        named = {f"model.layers.{layer + 8}": parts[layer].contiguous() for layer in range(files.LAYERS)}
        save_torch({"logits": parts} if form == "bf16" else named, path)
    cell = trace_cell(path, "logits")
    np.testing.assert_array_equal(rank_logits(cell, rank=1, layer=2), logits[2, 12:24])
    best = np.sort(np.argsort(-logits[2], axis=1)[:, :4], axis=1)
    np.testing.assert_array_equal(np.sort(route_all(cell, layer=2).ids.reshape(48, 4), axis=1), best)
    with pytest.raises(Unsupported, match="form ids or counts"):
        route_all(trace_cell(path, "logits", router=Recorded()))


def test_layers_and_steps_are_chosen_by_number_and_dense_layers_passed_over(tmp_path):
    ids = np.stack([files.chosen(tokens=48, seed=seed) for seed in range(3)])
    ids[:, 0] = 0  # a dense layer, as engines record it
    np.savez(tmp_path / "t.npz", ids=ids)
    cell = trace_cell(tmp_path / "t.npz", "ids", cell_layers=2)
    assert recording_of(cell).layers == (1, 2)
    np.testing.assert_array_equal(route_all(cell, layer=1, step=2).ids.reshape(48, 4), ids[2, 2])
    picked = trace_cell(tmp_path / "t.npz", "ids", layers=(2,), steps=(2, 0), cell_steps=2)
    np.testing.assert_array_equal(route_all(picked).ids.reshape(48, 4), ids[2, 2])
    np.testing.assert_array_equal(route_all(picked, step=1).ids.reshape(48, 4), ids[0, 2])
    np.testing.assert_array_equal(route_all(picked, step=2).ids.reshape(48, 4), ids[2, 2])
    with pytest.raises(ValueError, match="has 1 layers to take, but layer 2 is asked for"):
        route_all(picked, layer=1)
    with pytest.raises(ValueError, match=r"has steps 0 to 2; workload.skew.steps asks for \[3\]"):
        route_all(trace_cell(tmp_path / "t.npz", "ids", steps=(3,)))
    with pytest.raises(ValueError, match="names an expert twice for token 0 of step 0, layer 0"):
        route_all(trace_cell(tmp_path / "t.npz", "ids", layers=(0,)))


class Bomb:
    def __reduce__(self):
        return Path.touch, (Path("pickle_ran"),)


def _bad(kind: str, folder: Path) -> tuple[Path, str]:
    """A file that is wrong, and its form."""
    ids, path = files.chosen(), folder / "t.npz"
    if kind == "missing":
        return folder / "none.npz", "ids"
    if kind == "suffix":
        (folder / "t.csv").write_text("1")
        return folder / "t.csv", "ids"
    if kind == "pickle npz":
        np.savez(path, ids=np.array([Bomb()], dtype=object))
        return path, "ids"
    if kind in ("pickle pt", "torn pt"):
        content = pickle.dumps({"logical_count": Bomb()})
        (folder / "t.pt").write_bytes(content if kind == "pickle pt" else b"PK\x03\x04")
        return folder / "t.pt", "counts"
    if kind == "torn safetensors":
        (folder / "t.safetensors").write_bytes(b"\x40")
        return folder / "t.safetensors", "ids"
    if kind == "torn parquet":
        (folder / "t.parquet").write_bytes(b"PAR1")
        return folder / "t.parquet", "ids"
    if kind == "deep json":
        (folder / "t.json").write_text("[" * 100_000)
        return folder / "t.json", "counts"
    if kind == "list json":
        (folder / "t.json").write_text("[1, 2]")
        return folder / "t.json", "counts"
    if kind == "huge npz":
        with zipfile.ZipFile(path, "w") as archive:
            head = b"{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999999,), }"
            archive.writestr("ids.npy", b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head)
        return path, "ids"
    if kind == "ragged json":
        (folder / "t.json").write_text(json.dumps({"logical_count": [[1, 2], [3]]}))
        return folder / "t.json", "counts"
    if kind == "missing rows":
        whole = files.parquet(folder / "w.parquet", ids, long=False, shuffled=False)
        import pyarrow.parquet as pq

        pq.write_table(pq.read_table(whole).slice(1), folder / "t.parquet")
        return folder / "t.parquet", "ids"
    arrays = {
        "floats": {"ids": ids.astype(np.float32)},
        "axes": {"ids": ids[0, 0]},
        "layout": {"other": ids[0]},
        "below -1": {"ids": ids - 5},
        "too many experts": {"ids": ids + 3},
        "other top_k": {"ids": ids[..., :3]},
        "twice": {"ids": np.concatenate([ids[..., :3], ids[..., :1]], axis=2)},
        "no expert": {"ids": np.full_like(ids, -1)},
        "negative": {"counts": -files.counts()},
        "other experts": {"counts": files.counts(experts=12)},
        "too few": {"counts": np.eye(16, dtype=np.int64)[None, :3]},
        "nothing": {"counts": np.zeros((1, 16), np.int64)},
        "names": {"a": ids, "b": ids},
        "nan": {"logits": np.full((2, 4, 16), np.nan, np.float32)},
        "unnumbered": {"gate": np.zeros((4, 16), np.float32)},
    }[kind]
    np.savez(path, **arrays)
    return path, {"counts": "counts", "logits": "logits", "gate": "logits"}.get(next(iter(arrays)), "ids")


BAD = {
    "missing": "is no file on this machine",
    "suffix": r"is none of \.npz",
    "pickle npz": "no .npz file of plain arrays",
    "pickle pt": "more than tensors and plain values",
    "torn pt": "or is no torch file",
    "torn safetensors": "cannot be read as safetensors",
    "torn parquet": "is no Parquet file",
    "deep json": "is no JSON",
    "list json": "holds a list where names and values are needed",
    "huge npz": "no .npz file of plain arrays",
    "ragged json": "lists of unequal lengths",
    "missing rows": "step 0 has 59 rows of 59 tokens in 3 layers: some are missing",
    "floats": "ids is float32; needed are integers",
    "axes": r"ids is \[4\]; needed are 2 to 4 axes",
    "layout": r"other \[40, 4\] is no \[tokens, layers, k\].*under the name ids",
    "below -1": "ids below -1",
    "too many experts": "names expert 18, model.num_experts is 16; name its model",
    "other top_k": r"has \[3\] experts a token, model.top_k is 4; name its model",
    "twice": "names an expert twice for token 0 of step 0, layer 0",
    "no expert": "holds no expert at all",
    "negative": "counts below 0",
    "other experts": "is of 12 experts, model.num_experts is 16",
    "too few": "tokens at 1 experts in layer 0, step 0, model.top_k is 4; choose steps with more",
    "nothing": "no steps in which a token chose an expert",
    "nan": "logits that are no finite numbers",
    "unnumbered": "has no logits, and not a number at the end of every name: gate",
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_get_one_message_that_names_the_field(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, form = _bad(kind, tmp_path)
    with pytest.raises(ValueError, match=BAD[kind]) as caught:
        route_all(trace_cell(path, form))
    assert str(caught.value).startswith("workload.skew.path: ")
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert not (tmp_path / "pickle_ran").exists()


def test_arrays_of_counts_must_be_named(tmp_path):
    path, _ = _bad("names", tmp_path)
    with pytest.raises(ValueError, match="has none of logical_count"):
        route_all(trace_cell(path, "counts"))


def test_a_file_changed_after_planning_is_refused_and_the_digest_is_in_the_id(tmp_path):
    path = tmp_path / "t.npz"
    text = f"model: mixtral-8x7b\nworkload: {{skew: {{kind: trace, path: {path}, form: ids}}, tokens_per_rank: 4}}\n"
    planned = []
    for seed in range(2):
        np.savez(path, ids=files.chosen(experts=8, seed=seed)[..., :2])
        planned += plan_cells(parse_scenario(text, file="s.yaml"))
    assert planned[0].cell_id != planned[1].cell_id
    assert planned[0].router.kind == "recorded"
    assert route_all(planned[1]).ids.shape[2] == 2
    with pytest.raises(ValueError, match="has changed since the cell was planned"):
        load_recording(planned[0].workload.skew, planned[0].trace_digest)


def test_a_cell_without_a_trace_has_no_recording():
    assert recording_of(make_cell()) is None
    assert trace_flags(make_cell()) == []


@pytest.mark.parametrize("form", ["npz", "safetensors", "per_token", "parquet", "json"])
def test_damaged_bytes_are_refused_in_words_or_read(form, tmp_path):
    """Whatever bytes are cut off or changed, nothing but the one refusal comes out."""
    if form == "parquet":
        path = files.parquet(tmp_path / "t.parquet", files.chosen(), long=False, shuffled=False)
    elif form == "json":
        path = files.sglang_json(tmp_path / "t.json", files.counts())
    else:
        path = write_ids(form, tmp_path, files.chosen(tokens=48))
    whole, draw, said = path.read_bytes(), np.random.default_rng(0), []
    for _ in range(60):
        damaged = bytearray(whole[: draw.integers(1, len(whole) + 1)] if draw.random() < 0.5 else whole)
        for place in draw.integers(0, len(damaged), 6):
            damaged[place] = draw.integers(0, 256)
        path.write_bytes(bytes(damaged))
        try:
            route_all(trace_cell(path, "counts" if form == "json" else "ids"))
        except ValueError as error:
            said.append(str(error))
    assert len(said) > 20
    assert all(text.startswith("workload.skew.path: ") for text in said)
