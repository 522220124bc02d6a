"""Descriptive columns of a record."""

import json

from tests.simulate.cells import make_cell
from workbench.run.describe import Shortage, base_record_fields, failed, infeasible, short_text, unsupported
from workbench.spec.record import COLUMNS, Record
from workbench.spec.scenario import Cell
from workbench.spec.workload import HotRank, Lognormal, PowerLaw, StudentT, Trace, Uniform


def test_columns_come_from_the_cell():
    cell = make_cell(
        ep=16, precision="mxfp8", skew="power_law", dispatch={"overlap": {"kind": "chunk", "degree": 4}},
        workload={"seed": 7},
    )  # fmt: skip
    fields = base_record_fields(cell)
    assert set(fields) <= set(COLUMNS)
    assert fields["model"] == "deepseek-v3"
    assert fields["router"] == "sigmoid_group"
    assert fields["skew"] == "power_law(1.01)"
    assert fields["scale_rule"] == "floor"
    assert (fields["overlap"], fields["overlap_degree"]) == ("chunk", 4)
    assert (fields["num_gpus"], fields["nodes"], fields["gpus_per_node"], fields["ep"]) == (16, 2, 8, 16)
    assert fields["seed"] == 7
    assert Cell.model_validate(json.loads(fields["cell_json"])) == cell
    Record(status="ok", **fields)


def test_a_cell_without_a_model():
    fields = base_record_fields(make_cell(None, scope={"kind": "all_to_all", "bytes_per_rank": "1MiB"}))
    assert fields["bytes_per_rank"] == 2**20
    assert fields["model"] is fields["router"] is fields["tokens_per_rank"] is None
    assert fields["skew"] == "uniform"
    gemm = base_record_fields(make_cell(None, scope={"kind": "quantize", "rows": 4, "columns": 8}))
    assert gemm["skew"] is None


def test_short_texts():
    assert short_text(Uniform()) == "uniform"
    assert short_text(PowerLaw(alpha=1.2)) == "power_law(1.2)"
    assert short_text(HotRank(factor=4.0, rank=3)) == "hot_rank(4, 3)"
    assert short_text(Lognormal(sigma=1.5)) == "lognormal(1.5)"
    assert short_text(StudentT()) == "student_t(4)"
    assert short_text(Trace(path="../secret/day.npz", form="ids")) == "trace(day.npz, ids)"


def test_endings_without_figures():
    cell = make_cell()
    assert unsupported(cell, "no", method="roofline").record.method == "roofline"
    broken = failed(cell, "boom", engine="measure").record
    assert (broken.status, broken.reason, broken.engine) == ("error", "boom", "measure")
    assert broken.latency_us is None
    short = Shortage(weight_bytes=70, needed_bytes=100, capacity_bytes=80)
    full = infeasible(cell, "short", shortage=short).record
    assert (full.fits, full.shortage_bytes, full.weight_bytes, full.peak_memory_bytes) == (False, 20, 70, 100)
    assert infeasible(cell, "no GPUs").record.fits is None
