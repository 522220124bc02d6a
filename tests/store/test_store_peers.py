"""Results of other projects come in as they are, and can be held against one another."""

import json
from pathlib import Path

import pytest

from workbench.cli.main import main
from workbench.store.importers import import_file
from workbench.store.merge import merge_runs
from workbench.store.peers.row import _part
from workbench.store.reader import read_table
from workbench.store.run_folder import open_run, run_info

FILES = Path(__file__).parent / "peers"


def bring(tmp_path, name, **told):
    run = import_file(FILES / name, results_dir=tmp_path, told=told)
    return run, read_table(run, "cells").frame.set_index("cell_id", drop=False)


def test_nccl_tests_by_size_and_place_of_the_buffers(tmp_path):
    run, cells = bring(tmp_path, "alltoall_perf.txt")
    out = cells[cells["group"] == "out-of-place"].set_index("bytes_per_rank")
    assert out["latency_us"].tolist() == [40.0, 60.0, 100.0]
    assert out.loc[1 << 20, ["algbw_gb_per_s", "busbw_gb_per_s"]].tolist() == [26.21, 13.11]
    assert out.loc[1 << 20, "algbw_gb_per_s"] == pytest.approx((1 << 20) / 40.0 / 1e3, rel=1e-3)
    assert set(cells["scope"]) == {"all_to_all"}
    first = out.iloc[0]
    assert (first["hardware"], first["device"], first["num_gpus"], first["nodes"]) == ("h200-sxm", "cuda", 2, 2)
    assert (first["engine"], first["method"], first["kernel"]) == ("measure", "nccl-tests", "nccl")
    assert out["status"].tolist() == ["ok", "ok", "error"]
    assert out["reason"].iloc[2] == "3 values were wrong"
    inside = cells[cells["group"] == "in-place"]
    assert inside["status"].tolist() == ["ok", "ok", "unsupported"]
    assert (run.path / "source" / "alltoall_perf.txt").read_bytes() == (FILES / "alltoall_perf.txt").read_bytes()
    assert run.manifest()["imported_from"] == "alltoall_perf.txt"
    info = run_info(run)
    assert (info.status, info.counts) == ("finished", {"ok": 4, "error": 1, "unsupported": 1})


def test_older_nccl_tests_have_other_columns(tmp_path):
    _, cells = bring(tmp_path, "all_reduce_older.log", hardware="h100-sxm", num_gpus="8")
    assert set(cells["scope"]) == {"all_reduce"}
    assert sorted(cells["latency_us"]) == [12.4, 12.5, 12.6, 12.7]
    assert set(cells["num_gpus"]) == {8}
    assert set(cells["device"]) == {"cuda"}


def test_vllm_serving_in_microseconds(tmp_path):
    _, cells = bring(tmp_path, "vllm_serve.json", hardware="h200-sxm", num_gpus="2", precision="mxfp4")
    (row,) = cells.to_dict("records")
    assert (row["latency_us"], row["tpot_us"], row["ttft_us"]) == (20_000.0, 20_000.0, 110_000.0)
    assert (row["tokens_per_s"], row["tokens_per_s_per_gpu"], row["tokens_per_s_per_user"]) == (4950.0, 2475.0, 50.0)
    assert (row["model"], row["kernel"], row["method"]) == ("openai/gpt-oss-120b", "vllm", "vllm-bench-serve")
    assert (row["status"], row["reason"]) == ("ok", "2 of 200 requests failed")
    assert json.loads(row["cell_json"])["workload"]["isl"] == 1000


def test_vllm_latency_keeps_its_samples_and_repeats_can_be_judged(tmp_path, capsys):
    runs = []
    for factor in (1.0, 1.001, 0.5, 0.501):
        file = tmp_path / "vllm_latency.json"
        told = json.loads((FILES / file.name).read_text())
        file.write_text(json.dumps(told | {"latencies": [factor * each for each in told["latencies"]]}))
        runs.append(import_file(file, results_dir=tmp_path / "store", told={"hardware": "h200-sxm"}))
    assert len(read_table(runs[0], "samples").frame) == 6
    assert read_table(runs[0], "cells").frame["latency_us"].tolist() == [1.02e6]
    merge_runs(runs[:2], results_dir=tmp_path / "store", name="old")
    merge_runs(runs[2:], results_dir=tmp_path / "store", name="new")
    assert main(["compare", "new", "--against", "old", "--results", str(tmp_path / "store")]) == 0
    assert "1 faster" in capsys.readouterr().out


def test_vllm_throughput_and_lines_of_results(tmp_path):
    _, cells = bring(tmp_path, "vllm_throughput.json", num_gpus="4")
    assert cells[["tokens_per_s", "tokens_per_s_per_gpu"]].iloc[0].tolist() == [32000.0, 8000.0]
    serve = json.loads((FILES / "vllm_serve.json").read_text())
    lines = tmp_path / "appended.json"
    lines.write_text("".join(json.dumps(serve | {"max_concurrency": n}) + "\n" for n in (1, 2, 4)))
    run = import_file(lines, results_dir=tmp_path)
    assert len(read_table(run, "cells").frame) == 3


def test_inferencex_rows_by_gpu_and_user(tmp_path, capsys):
    _, cells = bring(tmp_path, "inferencex.json")
    rows = cells.set_index("kernel")
    assert rows.loc["sglang", ["hardware", "num_gpus", "tp", "ep"]].tolist() == ["h200-sxm", 8, 8, 8]
    assert rows.loc["sglang", ["latency_us", "ttft_us", "tokens_per_s"]].tolist() == [20_000.0, 800_000.0, 9600.0]
    assert rows.loc["trt", ["hardware", "precision", "tokens_per_s_per_gpu"]].tolist() == ["b200-sxm", "fp4", 5200.0]
    apart = rows.loc["dynamo"]
    assert (apart["num_gpus"], apart["prefill_gpus"], apart["decode_gpus"]) == (24, 8, 16)
    assert (apart["tokens_per_s"], apart["hardware"]) == (216_000.0, "gb200-nvl72")
    assert set(rows["method"]) == {"inferencex"}
    nested = tmp_path / "api.json"
    flat = json.loads((FILES / "inferencex.json").read_text())[0]
    metrics = {name: flat.pop(name) for name in list(flat) if name.startswith(("tput", "mean", "median"))}
    nested.write_text(json.dumps({"rows": [{**flat, "hardware": flat.pop("hw"), "metrics": metrics}]}))
    run = import_file(nested, results_dir=tmp_path)
    again = read_table(run, "cells").frame
    assert again["cell_id"].tolist() == [rows.loc["sglang", "cell_id"]]
    for command in (["show"], ["compare", "--by", "kernel"], ["report", "-o", str(tmp_path / "r.html")]):
        name, *options = command
        assert main([name, "inferencex", *options, "--results", str(tmp_path)]) == 0, command
    assert "gb200-nvl72" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("NVIDIA H100 80GB HBM3", ("h100-sxm", "cuda")),
        ("NVIDIA H100 PCIe", ("NVIDIA H100 PCIe", None)),
        ("NVIDIA GeForce RTX 4090", ("rtx-4090", "cuda")),
        ("mi300x", ("mi300x", "hip")),
        ("gb300-nvl72", ("gb300-nvl72", "cuda")),
        ("TPU v6e", ("TPU v6e", None)),
        (None, (None, None)),
    ],
)
def test_parts_get_the_catalogs_names(name, part):
    assert _part(name) == part


@pytest.mark.parametrize(
    ("file", "told", "message"),
    [
        ("vllm_serve.json", {"colour": "red"}, "--set colour=red: an import can be told model, hardware"),
        ("vllm_serve.json", {"num_gpus": "few"}, "--set num_gpus=few: not a whole number"),
    ],
)
def test_what_cannot_be_told(tmp_path, file, told, message):
    with pytest.raises(ValueError, match=message):
        import_file(FILES / file, results_dir=tmp_path / "store", told=told)
    assert not (tmp_path / "store").exists()


def test_a_cut_line_is_named(tmp_path, capsys):
    text = (FILES / "alltoall_perf.txt").read_text()
    cut = tmp_path / "cut.txt"
    cut.write_text(text[: text.index("17.48")])
    assert main(["import", str(cut), "--results", str(tmp_path / "store")]) == 2
    assert "line 13 has" in capsys.readouterr().err
    assert main(["import", str(cut), "--set", "hardware", "--results", str(tmp_path / "store")]) == 2
    assert "write COLUMN=VALUE" in capsys.readouterr().err
    header = tmp_path / "header.txt"
    header.write_text("\n".join(text.splitlines()[:11]))
    assert main(["import", str(header), "--results", str(tmp_path / "store")]) == 2
    assert "no line with figures" in capsys.readouterr().err


def test_importing_twice_gives_the_same_cells(tmp_path):
    _, first = bring(tmp_path, "inferencex.json")
    _, second = bring(tmp_path, "inferencex.json")
    assert list(first.index) == list(second.index)
    assert open_run(tmp_path, "latest").manifest()["form"] == "InferenceX JSON"
