"""The profile of a cell: a trace that names the stages, made after the samples and by the first rank alone."""

import gzip
import json
from collections import Counter
from dataclasses import replace

import pytest

from tests.run.rank_gang import cell, model
from workbench.measure.profiling import PASSES
from workbench.run.context import open_context
from workbench.run.measured import run_rank
from workbench.run.trace import trace_of
from workbench.spec.dispatch import Offload
from workbench.spec.scenario import GroupedGemmScope


@pytest.fixture(scope="module")
def alone():
    return open_context(rank=0, world=1, device_type="cpu", ranks_per_node=1)


def spans(trace):
    """How often each annotated span comes up."""
    events = json.loads(gzip.decompress(trace))["traceEvents"]
    return Counter(event["name"] for event in events if event.get("cat") == "user_annotation")


def test_a_layers_trace_names_its_stages(alone):
    one = cell(ranks=1, strategy="none", precision="fp8_block")
    report = run_rank(one, alone, profile=True)
    assert report.status == "ok", report.reason
    counts = spans(report.trace)
    for name, _ in report.stages:
        assert counts[name] == PASSES * [stage for stage, _ in report.stages].count(name)
    assert counts["pass 0"] == counts[f"pass {PASSES - 1}"] == 1


def test_without_profile_there_is_none(alone):
    assert run_rank(cell(ranks=1, strategy="none"), alone).trace is None


def test_microbenchmarks_and_offloaded_layers_have_one_too(alone):
    scope = GroupedGemmScope(kind="grouped_gemm", groups=4, m=16, n=32, k=32)
    assert spans(run_rank(cell(ranks=1, scope=scope), alone, profile=True).trace)["gemm1"] == PASSES
    layer = cell(ranks=1, strategy="none", moe=model(), tokens=4)
    steps = layer.workload.model_copy(update={"steps": 2})
    layer = layer.model_copy(update={"offload": Offload(tier="host", resident_fraction=0.5), "workload": steps})
    assert spans(run_rank(layer, alone, profile=True).trace)["experts"] == 2 * PASSES


def test_other_ranks_run_the_same_passes_and_record_nothing(alone):
    calls = []
    second = replace(alone, rank=1, profile=True)
    assert trace_of(second, lambda: [("gemm1", lambda: calls.append(1))]) is None
    assert len(calls) == PASSES
