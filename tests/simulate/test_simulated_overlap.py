"""Messages priced beside computation: the pipeline's own spans, what they hide, and how that compares to formulas."""

from itertools import pairwise

import numpy as np
import pytest

from tests.simulate.cells import cluster_of, make_cell
from workbench.comm.strategies import STRATEGIES
from workbench.run.simulated import run_simulated
from workbench.simulate.layer import price_layer
from workbench.simulate.timeline import Message, Pass, Step, Task, Timeline, Transfer, busy_us
from workbench.simulate.traffic import group_traffic, part_traffics

FP8 = {"dispatch_dtype": "fp8_block"}
SENDING = [name for name in STRATEGIES if name != "none"]
OVERLAPS = [{"kind": "chunk", "degree": 2}, {"kind": "chunk", "degree": 5}, "two_batch"]


def chunk(degree, **rest):
    return {"overlap": {"kind": "chunk", "degree": degree}} | rest


def priced(**arguments):
    cell = make_cell(**arguments)
    return price_layer(cell, group_traffic(cell), parts=part_traffics(cell))


def ok(**arguments):
    record = run_simulated(make_cell(**arguments)).record
    assert record.status == "ok", record.reason
    return record


def task(name, *us):
    us_R = np.array(us, float)
    return (Task(name, us_R, 0 * us_R, 0 * us_R),)


def message(name, total, *own):
    own_R = np.array(own or (total, total), float)
    return Message((), (Transfer(name, own_R, total, 0 * own_R),))


def pipeline(count, *, dispatch, experts, combine):
    steps = (
        Step(task("encode", 0, 0), message("dispatch", dispatch)),
        Step(task("gemm1", *experts), message("combine", combine)),
        Step(()),
    )
    return [Pass((), (steps,) * count, (), task("finish", 1, 1))]


@pytest.mark.parametrize(
    ("count", "dispatch", "experts", "combine", "overlaps", "total"),
    [
        (1, 10, (20, 20), 30, False, 61),
        (2, 10, (20, 20), 30, False, 121),
        (2, 10, (20, 20), 30, True, 91),  # d0 d1 | e0 from 10 to 30, c0 to 60 beside e1, c1 to 90
        (2, 10, (40, 40), 10, True, 101),  # d0 to 10, e0 to 50, e1 to 90 beside c0, c1 to 100
        (3, 10, (20, 5), 10, True, 81),  # rank 1 waits for rank 0 at every combine
    ],
)
def test_a_pipeline_by_hand(count, dispatch, experts, combine, overlaps, total):
    timeline = Timeline(2, overlaps=overlaps)
    timeline.run(pipeline(count, dispatch=dispatch, experts=experts, combine=combine))
    assert timeline.latest_us == total


def test_what_is_beside_runs_once_all_first_messages_are_on_their_way():
    one = pipeline(2, dispatch=10, experts=(20, 20), combine=30)[0]
    timeline = Timeline(2, overlaps=True)
    timeline.run([Pass((), one.parts, task("shared_expert", 15, 5))])
    start = {span.stage: span.start_us_R.tolist() for span in reversed(timeline.spans)}
    assert start["shared_expert"] == [0, 0]
    assert start["gemm1"] == [15, 10]


def test_busy_time_counts_what_overlaps_once():
    timeline = Timeline(2, overlaps=True)
    timeline.run(pipeline(2, dispatch=10, experts=(40, 5), combine=10))
    # rank 0: d0, e0 and e1, c1, finish without a gap; rank 1: d0, d1 with e0 beside, e1, c0, c1, finish
    assert busy_us(timeline.spans).tolist() == [101, 10 + 10 + 5 + 10 + 10 + 1]


def streams(cost, rank):
    found = {}
    for span in cost.spans:
        if span.duration_us_R[rank] > 0:
            found.setdefault(span.stream, []).append((span.start_us_R[rank], span.duration_us_R[rank]))
    return found


@pytest.mark.parametrize("strategy", SENDING)
@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("scope", ["layer", "train_step"])
def test_no_stream_does_two_things_at_once(strategy, overlap, scope):
    dispatch = FP8 | {"strategy": strategy, "overlap": overlap, "shared_expert_overlap": True}
    cost = priced(ep=16, tokens=300, scope=scope, dispatch=dispatch, precision="fp8_block")
    assert {span.stream for span in cost.spans} == {"main", "network"}
    for rank in (0, 7, 15):
        for spans in streams(cost, rank).values():
            assert all(a + took <= b + 1e-6 for (a, took), (b, _) in pairwise(sorted(spans)))
    sent = {"dispatch", "combine", "count_exchange", "dispatch.backward", "combine.backward"}
    assert {span.stage for span in cost.spans if span.stream == "network"} <= sent
    assert {span.stage for span in cost.spans if span.stream == "main"}.isdisjoint(sent)
    assert cost.latency_us == pytest.approx(max((s.start_us_R + s.duration_us_R).max() for s in cost.spans), rel=0.02)
    assert (cost.busy_us_R <= cost.latency_us + 1e-6).all()
    assert 0 < cost.hidden_us < cost.exchange_us


@pytest.mark.parametrize("strategy", ["flat", "node_dedup", "pairwise", "allgather_reduce_scatter"])
def test_parts_send_the_bytes_of_the_whole(strategy):
    whole = ok(ep=16, tokens=100, dispatch={"strategy": strategy})
    for overlap in OVERLAPS:
        parts = ok(ep=16, tokens=100, dispatch={"strategy": strategy, "overlap": overlap})
        assert parts.wire_bytes == whole.wire_bytes
        assert parts.scale_out_bytes == whole.scale_out_bytes
        assert parts.load_max_over_mean == whole.load_max_over_mean


def test_one_chunk_is_the_layer_and_more_hide_what_they_can():
    alone, one = ok(ep=16, tokens=2048), ok(ep=16, tokens=2048, dispatch=chunk(1))
    assert one.latency_us == alone.latency_us
    assert alone.flags is None or "overlap" not in alone.flags
    two = ok(ep=16, tokens=2048, dispatch=chunk(2))
    assert two.latency_us < alone.latency_us
    assert two.comm_fraction < alone.comm_fraction


@pytest.mark.parametrize("gb_per_s", [10.0, 50.0, 4000.0])
@pytest.mark.parametrize("degree", [2, 4, 8])
def test_the_pipeline_lies_between_its_bound_and_the_formula(gb_per_s, degree):
    """Between max(comm, experts) and (t_d + t_e + t_c) / d + (d - 1) / d max(comm, t_e), both with the same latencies.

    The formula leaves the last chunk's experts and first messages in the open; combines hide some of them.
    """
    cluster = cluster_of(gpus=16)
    out = cluster.hardware.scale_out.model_copy(update={"gb_per_s": gb_per_s})
    cluster = cluster.model_copy(update={"hardware": cluster.hardware.model_copy(update={"scale_out": out})})
    model = {"base": "deepseek-v3", "shared_intermediate": 0}
    options = {"model": model, "ep": 16, "tokens": 8192, "cluster": cluster, "scope": "layer_no_router"}
    options["method"] = "roofline"
    cost = priced(dispatch=chunk(degree), skew="balanced", **options)
    comm_us, experts_us = cost.exchange_us, cost.parts_us["compute"]  # of all chunks, their latencies among them
    formula_us = (comm_us + experts_us) / degree + (degree - 1) / degree * max(comm_us, experts_us)
    assert max(comm_us, experts_us) <= cost.latency_us * (1 + 1e-6)
    assert cost.latency_us <= formula_us * 1.02
    assert cost.latency_us >= 0.85 * formula_us
    assert cost.hidden_us == pytest.approx(comm_us + experts_us - cost.latency_us, rel=0.05)


def test_too_many_chunks_cost_their_latencies():
    """Few tokens: every chunk reads all experts again and starts its messages anew."""
    few = [ok(ep=16, tokens=16, dispatch=chunk(degree)).latency_us for degree in (1, 2, 4, 8)]
    assert few == sorted(few)


def test_fewer_tokens_than_chunks_are_told():
    record = ok(ep=16, tokens=3, dispatch=chunk(8))
    assert "overlap_chunks=3" in record.flags
    assert ok(ep=16, tokens=0, dispatch=chunk(8)).status == "ok"


def test_two_batches_hide_the_gate_and_the_shared_expert_too():
    two, halves = (ok(ep=32, tokens=4096, dispatch={"overlap": kind}) for kind in ("two_batch", chunk(2)["overlap"]))
    assert two.latency_us < halves.latency_us
    spans = priced(ep=32, tokens=64, dispatch={"overlap": "two_batch"}).spans
    assert sum(span.stage == "gate" for span in spans) == 2


def test_two_batch_helps_large_batches_and_not_small_ones():
    def gain(tokens):
        plain, two = (ok(ep=16, tokens=tokens, dispatch=FP8 | {"overlap": o}) for o in ("none", "two_batch"))
        return plain.latency_us / two.latency_us

    assert gain(8) < 1
    assert gain(4096) > 1.1


def test_a_sampled_group_overlaps_as_the_whole_one():
    how = {"ep": 64, "tokens": 512, "dispatch": chunk(4)}
    cell = make_cell(**how)
    sampled = priced(**how)
    parts = part_traffics(cell)
    assert parts[0].scale > 1
    assert sum(part.pairs_R.sum() for part in parts) == pytest.approx(group_traffic(cell).pairs_R.sum())
    assert sum(part.tokens_R.sum() for part in parts) == 64 * 512
    assert sampled.latency_us < ok(ep=64, tokens=512).latency_us


def test_gradients_of_chunks_are_added_up():
    spans = priced(ep=16, tokens=64, scope="train_step", dispatch=chunk(3)).spans
    assert sum(span.stage == "finish.backward" for span in spans) == 2
    assert sum(span.stage == "gemm1.wgrad" for span in spans) == 3


def test_links_of_chunks_are_one_row_each():
    links = run_simulated(make_cell(ep=16, tokens=64, dispatch=chunk(4))).tables["links"]
    names = [row["link"] for row in links]
    assert len(names) == len(set(names))
    plain = run_simulated(make_cell(ep=16, tokens=64)).tables["links"]
    (bytes_of,) = {row["bytes"] for row in links if row["link"] == "dispatch.all_to_all/scale_out/out/rank 0"}
    assert bytes_of == next(r["bytes"] for r in plain if r["link"] == "dispatch.all_to_all/scale_out/out/rank 0")
