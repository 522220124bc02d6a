"""Tuning without a GPU: the choice, the table's text, and a polite refusal."""

import ast

import pytest
import torch

from kernels.grouped_gemm.tiles import Tile
from workbench.cli.main import main
from workbench.run.tune import choose_layer, choose_pair, render_table, require_gpu, write_table

WIDE, NARROW, SMALL = Tile(64, 128, 64, 4, 3, 1), Tile(64, 64, 64, 4, 3, 1), Tile(16, 64, 64, 4, 3, 1)


def test_pairs_share_their_rows_and_the_geometric_mean_decides():
    first = {(64, WIDE): [10.0, 1.0], (64, NARROW): [8.0, 2.0], (16, SMALL): [1.0, 1.0]}
    second = {(64, NARROW): [5.0, 0.5]}
    us, tile1, tile2 = choose_pair(first, second)
    assert (tile1, tile2) == (WIDE, NARROW)
    assert us == pytest.approx((15 * 1.5) ** 0.5)


def test_a_tile_that_failed_on_one_size_is_not_chosen():
    first = {(64, WIDE): [1.0], (64, NARROW): [8.0, 2.0]}
    assert choose_pair(first, {(64, NARROW): [5.0, 0.5]})[1] == NARROW
    with pytest.raises(ValueError, match="no pair of tiles"):
        choose_pair(first, {(16, SMALL): [1.0, 1.0]})


def test_layers_are_chosen_whole_and_of_those_that_ran_on_every_size():
    layers = {(WIDE, NARROW): [4.0, 1.0], (NARROW, NARROW): [1.0], (NARROW, WIDE): [3.0, 1.0]}
    assert choose_layer(layers)[1:] == (NARROW, WIDE)


def test_table_is_a_module_that_reads_back(tmp_path):
    table = {
        "gpu": "NVIDIA H200",
        "date": "2026-12-01",
        "versions": {"torch": "2", "triton": "3"},
        "tiles": {
            "bf16": [(6.0, (16, 64, 128, 4, 4, 1, False), (16, 64, 256, 4, 3, 1, True)), (float("inf"), (1,), (2,))]
        },
    }
    path = tmp_path / "deep" / "nvidia_h200.py"
    write_table(render_table(table), path)
    text = path.read_text()
    ast.parse(text)
    found: dict = {}
    exec(compile(text, str(path), "exec"), found)
    assert found["TABLE"] == table
    assert "2026-12-01" in found["__doc__"]
    assert [p.name for p in path.parent.iterdir()] == ["nvidia_h200.py"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_it_refuses_in_one_line(capsys):
    with pytest.raises(ValueError, match="torch sees no GPU"):
        require_gpu()
    assert main(["tune"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
