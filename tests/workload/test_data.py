"""Activations: their distributions, and files that are refused."""

import json
import struct

import numpy as np
import pytest
import torch

from tests.workload.factory import make_cell
from workbench.workload.data import rank_activations


def test_gaussian_is_standard_and_seeded():
    cell = make_cell(tokens=400, hidden=512)
    x = rank_activations(cell, rank=0)
    assert x.shape == (400, 512)
    assert x.dtype == torch.bfloat16
    assert abs(x.float().mean()) < 0.01
    assert abs(x.float().std() - 1) < 0.01
    assert torch.equal(x, rank_activations(cell, rank=0))
    assert not torch.equal(x, rank_activations(cell, rank=1))


def test_student_t_has_heavier_tails():
    kurtosis = {}
    for kind in ("gaussian", "student_t"):
        x = rank_activations(make_cell(tokens=400, hidden=512, data=kind), rank=0).double()
        kurtosis[kind] = float((x**4).mean() / (x**2).mean() ** 2)
    assert kurtosis["gaussian"] == pytest.approx(3, rel=0.05)
    assert kurtosis["student_t"] > 6


def test_outlier_channels_are_large_on_every_rank():
    cell = make_cell(tokens=200, hidden=512, data={"kind": "outlier_channels", "fraction": 0.01, "factor": 20.0})
    large = [(rank_activations(cell, rank=rank).float().std(0) > 5).nonzero().flatten().tolist() for rank in (0, 3)]
    assert len(large[0]) == 5
    assert large[0] == large[1]


def test_no_tokens_and_odd_widths():
    assert rank_activations(make_cell(tokens=0), rank=0).shape == (0, 256)
    assert rank_activations(make_cell(tokens=3, hidden=7), rank=0).shape == (3, 7)


def write_safetensors(path, name, array):
    header = json.dumps(
        {name: {"dtype": "F32", "shape": list(array.shape), "data_offsets": [0, array.nbytes]}}
    ).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + array.tobytes())


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_file_rows_are_dealt_over_ranks_and_repeat(tmp_path, suffix):
    array = np.arange(5 * 256, dtype=np.float32).reshape(5, 256) % 100
    path = tmp_path / f"x{suffix}"
    if suffix == ".npy":
        np.save(path, array)
    else:
        write_safetensors(path, "h", array)
    cell = make_cell(tokens=3, data={"kind": "file", "path": str(path)})
    expected = torch.from_numpy(array).bfloat16()
    assert torch.equal(rank_activations(cell, rank=0), expected[:3])
    assert torch.equal(rank_activations(cell, rank=1), expected[[3, 4, 0]])


def test_bad_files_are_named(tmp_path):
    np.save(tmp_path / "narrow.npy", np.zeros((4, 3), np.float32))
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\0\0")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    write_safetensors(tmp_path / "other.safetensors", "h", np.zeros((4, 256), np.float32))
    for name, message in (
        ("narrow.npy", r"\(4, 3\)"), ("objects.npy", "no plain"), ("cut.safetensors", "cannot be read"),
        ("empty.safetensors", "cannot be read"), ("absent.npy", "no file"), ("x.bin", "neither"),
    ):  # fmt: skip
        cell = make_cell(data={"kind": "file", "path": str(tmp_path / name)})
        with pytest.raises(ValueError, match=message):
            rank_activations(cell, rank=0)
    data = {"kind": "file", "path": str(tmp_path / "other.safetensors"), "tensor": "absent"}
    with pytest.raises(ValueError, match="absent"):
        rank_activations(make_cell(data=data), rank=0)
