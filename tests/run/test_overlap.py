"""Overlapped layers: the pipeline's order and faults, and on real ranks the same output, the same bytes, less time."""

import gzip
import json
import threading

import pytest
import torch

from tests.run import overlap_gang
from tests.run.rank_gang import cell, run_ranks
from workbench.measure.profiling import PASSES
from workbench.run.chunks import require_overlap
from workbench.run.measured import merge_reports
from workbench.run.overlap import Lane, LaneStopped, in_turn, legs_of, overlapped, travels
from workbench.spec.errors import Unsupported
from workbench.spec.router import ExpertChoice
from workbench.spec.scenario import AllToAllScope

CPU = torch.device("cpu")


def forward(part, log):
    """The stages of a part; each notes who ran it."""
    names = ("quantise", "dispatch", "gemm1", "combine", "finish")
    return [(name, lambda name=name: log.append((f"{name}{part}", threading.current_thread().name))) for name in names]


def test_stages_are_cut_behind_messages():
    legs = legs_of(forward(0, []))
    assert [[name for name, _ in leg.compute] for leg in legs] == [["quantise"], ["gemm1"], ["finish"]]
    assert [[name for name, _ in leg.send] for leg in legs] == [["dispatch"], ["combine"], []]
    assert [travels(name) for name in ("combine.backward", "dispatch", "quantise.backward")] == [True, True, False]


def test_the_lane_sends_in_an_order_of_its_own_and_alone():
    log = []
    overlapped([forward(part, log) for part in range(3)], Lane(CPU), beside=[("shared", lambda: log.append("shared"))])
    sent = [name for name, thread in (entry for entry in log if entry != "shared") if thread.startswith("messages")]
    assert sent == ["dispatch0", "dispatch1", "dispatch2", "combine0", "combine1", "combine2"]
    computed = [entry[0] if entry != "shared" else entry for entry in log if entry[0] not in sent]
    parts = range(3)
    assert computed == [
        *(f"quantise{part}" for part in parts), "shared", *(f"gemm1{part}" for part in parts),
        *(f"finish{part}" for part in parts),
    ]  # fmt: skip


def test_in_turn_runs_the_same_stages_on_one_thread():
    log = []
    for _, stage in in_turn([forward(part, log) for part in range(2)], beside=[("s", lambda: log.append(("s", "")))]):
        stage()
    assert [name for name, _ in log] == [
        "quantise0", "dispatch0", "quantise1", "dispatch1", "s", "gemm10", "combine0", "gemm11", "combine1", "finish0",
        "finish1",
    ]  # fmt: skip


def test_messages_travel_while_the_caller_computes():
    """Each waits for the other inside of a stage: neither ends unless both run at once."""
    both = threading.Barrier(2, timeout=20)
    idle = ("finish", lambda: None)
    first = [("dispatch", lambda: None), ("gemm1", both.wait), ("combine", lambda: None), idle]
    second = [("dispatch", both.wait), ("gemm1", lambda: None), ("combine", lambda: None), idle]
    overlapped([first, second], Lane(CPU))


def fail():
    raise ConnectionError("the cable is out")


def test_a_fault_in_the_lane_comes_out_as_itself_and_stops_the_lane():
    lane, log = Lane(CPU), []
    parts = [forward(0, log), [("dispatch", fail), *forward(1, log)[2:]], forward(2, log)]
    with pytest.raises(ConnectionError, match="the cable is out"):
        overlapped(parts, lane)
    assert "dispatch2" not in [name for name, _ in log]
    with pytest.raises(LaneStopped) as stopped:
        lane.wait(lane.submit(lambda: log.append("sent")))
    assert isinstance(stopped.value.__cause__, ConnectionError)
    assert "sent" not in log


def test_a_fault_beside_the_lane_comes_out_once_the_lane_rests():
    log, started = [], threading.Event()
    slow = [("dispatch", lambda: (started.wait(20), log.append("sent"))), ("gemm1", lambda: None)]

    def fault():
        started.set()
        fail()

    with pytest.raises(ConnectionError):
        overlapped([[("dispatch", lambda: None), ("gemm1", fault)], slow], Lane(CPU))
    assert log == ["sent"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"strategy": "none"}, "dispatch.overlap: chunk hides messages, and none travel: dispatch.strategy is none"),
        ({"ranks": 1}, "parallel.ep is 1"),
        ({"scope": AllToAllScope(kind="all_to_all", bytes_per_rank=64)}, "scope all_to_all has none"),
        ({"overlap": "none", "shared_overlap": True, "ranks": 1}, "dispatch.shared_expert_overlap: true hides"),
    ],
)
def test_what_cannot_overlap_names_the_field(options, reason):
    with pytest.raises(Unsupported) as refusal:
        require_overlap(cell(**({"overlap": {"kind": "chunk", "degree": 2}} | options)))
    assert reason in refusal.value.reason


def test_two_batches_need_a_router_that_decides_by_token():
    one = cell(overlap="two_batch").model_copy(update={"router": ExpertChoice()})
    with pytest.raises(Unsupported, match="router expert_choice does not"):
        require_overlap(one)
    require_overlap(cell(overlap="two_batch"))


@pytest.fixture(scope="module")
def seen():
    return run_ranks(overlap_gang.observe, world=2)


def test_the_output_is_that_of_the_layer_without_overlap(seen):
    for rank in seen:
        for runs in rank["same"]:
            assert len(runs) == 2 * len(overlap_gang.CHUNKS) + 3
            assert all(run["equal"] and run["in_turn"] for run in runs), runs


def test_scales_of_a_whole_tensor_differ_by_chunk_within_the_format(seen):
    for rank in seen:
        assert all(run["in_turn"] for run in rank["scaled"])
        assert all(run["error"] < run["limit"] < 0.2 for run in rank["scaled"])
        assert any(not run["equal"] for run in rank["scaled"])


def test_wire_bytes_are_those_of_the_chunks_plans(seen):
    for rank in seen:
        for run in (run for runs in rank["same"] for run in runs):
            assert run["wire"] == run["planned"]
        assert all(runs[0]["wire"] > 0 for runs in rank["same"])


def test_more_chunks_than_tokens_and_no_tokens_at_all(seen):
    for rank in seen:
        assert [run["chunks"][0] for run in rank["few"][:8:2]] == [1, 2, 2, 2]
        assert all(run["equal"] and run["chunks"][0] == run["chunks"][1] for run in rank["few"])
        assert {run["chunks"][0] for run in rank["few"][len(rank["few"]) // 2 :]} == {1}


def test_gradients_summed_over_chunks_are_those_without(seen):
    """In bf16 only the order of float32 sums over tokens differs; FP8 blocks of a weight's gradient span tokens."""
    for rank in seen:
        for run in rank["trained"]:
            assert run["error"] < run["limit"] < 0.3
            assert run["equal"]
            assert run["wire"][0] == run["wire"][1] > 0


def test_training_steps_on_two_ranks_have_the_gradients_of_autograd(seen):
    for reports in zip(*(rank["stepped"] for rank in seen), strict=True):
        record = merge_reports(reports[0][0], [report for _, report in reports]).record
        assert record.status == "ok", (record.strategy, record.overlap, record.reason)
        assert 0 < record.grad_rel_error < 0.02


def test_a_profile_shows_messages_on_a_thread_of_their_own(seen):
    assert seen[1]["profiled"] == [None, None]
    pipelines = (("dispatch", "gemm1"), ("dispatch.backward", "gemm1.wgrad"))
    for trace, pipeline in zip(seen[0]["profiled"], pipelines, strict=True):
        spans = [e for e in json.loads(gzip.decompress(trace))["traceEvents"] if e.get("cat") == "user_annotation"]
        threads = {name: {span["tid"] for span in spans if span["name"] == name} for name in (*pipeline, "finish")}
        assert [sum(span["name"] == name for span in spans) for name in pipeline] == [2 * PASSES, 2 * PASSES]
        assert threads[pipeline[1]] == threads["finish"] != threads[pipeline[0]]


def test_overlap_hides_half_of_what_theory_allows(seen):
    """Theory: (d - 1) / d of the shorter of messages and experts, here the experts; all of it is sleep."""
    best = seen[0]["gains"]
    for degree in (2, 4):
        allowed = (degree - 1) / degree * overlap_gang.SLEPT_S
        assert best[None] - best[degree] >= allowed / 2, best


def test_a_broken_message_fails_every_rank_within_the_groups_timeout(seen):
    (others, waited_s), (own, _) = seen[0]["broken"], seen[1]["broken"]
    assert own[0][:2] == ("ConnectionError", "the cable is out")
    assert own[1] == ("LaneStopped", "an earlier message of this rank failed", "ConnectionError")
    assert others[0][0] == "RuntimeError"
    assert waited_s < overlap_gang.GROUP_TIMEOUT_S + 20
