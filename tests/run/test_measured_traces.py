"""Recorded traffic through a measured layer: the recorded experts run, and are checked as any others."""

import numpy as np
import pytest

from tests.run.rank_gang import cell
from tests.workload.trace_files import chosen, counts
from workbench.run.context import open_context
from workbench.run.measured import merge_reports, run_rank
from workbench.spec.router import Recorded
from workbench.spec.scenario import LayerScope
from workbench.workload.loads import slot_counts


@pytest.fixture(scope="module")
def alone():
    return open_context(rank=0, world=1, device_type="cpu", ranks_per_node=1)


def traced(path, form, **fields):
    skew = {"kind": "trace", "path": str(path), "form": form}
    router = {} if form == "logits" else {"router": Recorded()}
    return cell(ranks=1, strategy="none", skew=skew, **fields).model_copy(update=router)


def test_recorded_experts_run_and_pass_the_gate(alone, tmp_path):
    ids = chosen(tokens=20)
    ids[0, 3, 2] = -1
    np.savez(tmp_path / "t.npz", ids=ids)
    one = traced(tmp_path / "t.npz", "ids", precision="fp8_block")
    report = run_rank(one, alone)
    assert report.status == "ok", report.reason
    wanted = slot_counts(np.concatenate([ids[0], ids[0, :4]]), 16)  # 24 tokens of 20
    assert dict(report.expert_tokens) == dict(enumerate(wanted.tolist()))
    assert report.dropped_tokens == 2
    record = merge_reports(one, [report]).record
    assert record.router == "recorded"
    assert record.flags == "trace_tokens=20"


@pytest.mark.parametrize("form", ["counts", "logits"])
def test_recorded_loads_and_logits_run(form, alone, tmp_path):
    content = counts() if form == "counts" else np.random.default_rng(0).standard_normal((24, 16)).astype(np.float32)
    np.savez(tmp_path / "t.npz", **{form: content})
    report = run_rank(traced(tmp_path / "t.npz", form), alone)
    assert report.status == "ok", report.reason
    assert report.pairs == 24 * 4


def test_a_file_that_is_gone_ends_the_cell_with_its_name(alone, tmp_path):
    report = run_rank(traced(tmp_path / "none.npz", "ids"), alone)
    assert report.status == "error"
    assert "none.npz (form ids) is no file on this machine" in report.reason


def test_recorded_experts_have_no_gradient(alone, tmp_path):
    np.savez(tmp_path / "t.npz", ids=chosen(tokens=24))
    report = run_rank(traced(tmp_path / "t.npz", "ids", scope=LayerScope(kind="train_step")), alone)
    assert report.status == "unsupported"
    assert "recorded has no gradient" in report.reason
