"""Goals of exchanges, each met without the rows that it is met on."""

import pytest

import workbench.run.held_out_links as module
from workbench.run.held_out_links import VALIDATED_SMS, deepep_rows, four_nodes, nccl_left_out, near_rows, priced_rows
from workbench.run.tutel_layer import all_to_all_us, mean_losses, overtaken_at
from workbench.run.validation.communication import communication_section
from workbench.run.validation.tutel import tutel_section
from workbench.simulate.fabric import fit_fabric


def test_every_goal_of_exchanges_is_met_and_says_what_was_held_out():
    lines = communication_section()
    goals = {line.split: line for line in lines if line.goal}
    assert set(goals) == {
        "NCCL all-to-all", "DeepEP low_latency", "DeepEP normal", "four nodes", "four nodes, low_latency",
        "four nodes, normal",
    }  # fmt: skip
    assert all(line.met for line in goals.values())
    assert all(line.held_out for line in lines)
    assert goals["four nodes"].count == 144
    assert goals["four nodes"].mape < 15
    told = " ".join(line.held_out for line in lines if line.count == 0)
    for part in ("AMD mi300x: unvalidated", "Intel gaudi3: unvalidated", "gb200-nvl72: unvalidated"):
        assert part in told


def test_four_nodes_are_predicted_without_their_rows(monkeypatch):
    before = four_nodes()
    rows = deepep_rows()
    assert near_rows()["nodes"].max() == 2
    monkeypatch.setattr(module, "deepep_rows", lambda: rows.assign(us=rows["us"].where(rows["nodes"].lt(4), 1e6)))
    few = module.deepep_rows().query("nodes == 4 and version == @module.VERSION and num_tokens == 128")
    after = priced_rows(few[few["sms"].isin((0, *VALIDATED_SMS))], fit_fabric(near_rows()))
    assert set(after["us"]) == {1e6}
    keys = ["split", "tokens"]
    same = after.merge(before, on=keys, suffixes=("", "_before"))
    assert len(same) == len(after) == 8
    assert same["predicted_us"].to_numpy() == pytest.approx(same["predicted_us_before"].to_numpy())


def test_the_nic_comes_from_low_latency_and_not_from_normal_on_two_nodes():
    """Normal on two nodes is bound by its SMs: with rows of that mode as slow as they like, the NIC stays."""
    rows = near_rows()
    slow = rows.assign(us=rows["us"].where(rows["mode"].ne("normal"), 3 * rows["us"]))
    assert fit_fabric(slow).dispatch.nic_share == fit_fabric(rows).dispatch.nic_share
    assert fit_fabric(slow).dispatch.barrier_us > 2 * fit_fabric(rows).dispatch.barrier_us


def test_every_size_is_left_out_once():
    found = nccl_left_out()
    assert not found.duplicated(["curve", "tokens"]).any()
    assert found.groupby("curve")["is_end"].sum().eq(2).all()


def test_tutel_in_figures():
    lines = tutel_section()
    goals = [line for line in lines if line.goal]
    assert len(goals) == 7
    assert all(line.met for line in goals)
    congested = [line for line in lines if line.split.startswith("256 GPUs, ") and line.count]
    assert len(congested) == 3
    assert all(0 < line.mape < 30 and line.goal is None for line in congested)


def test_two_dh_overtakes_later_with_larger_buffers():
    gpus = (16, 64, 256, 1024, 4096)
    starts = [overtaken_at(size * 2**20, gpus) for size in (1, 32, 256)]
    assert starts == sorted(starts)
    assert starts[0] <= 256 < starts[2]
    assert all_to_all_us(16, 2**28, two_dh=True) > all_to_all_us(16, 2**28)
    assert overtaken_at(2**28, (16, 32)) is None


def test_beside_each_other_messages_and_computation_are_slower():
    alone, together = (mean_losses(16, interferes=interferes) for interferes in (False, True))
    assert alone[1] > together[1], "not to overlap loses less where overlap brings less"
    assert min(together, key=together.get) == 2
