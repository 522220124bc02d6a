"""The search: what it finds is the best of what ``run`` prices, limits hold, and every loser has its reason."""

import itertools
import json
import shlex

import numpy as np
import pytest

from workbench.analysis.pareto import pareto_front
from workbench.cli.main import main
from workbench.plan import plan_cells
from workbench.run.simulated import run_simulated
from workbench.search import search
from workbench.search import space as search_space
from workbench.search.evaluate import OK, Candidate
from workbench.search.reasons import why_lost
from workbench.search.search import search_file
from workbench.spec.scenario_file import load_scenario, parse_scenario

LAYER = """
name: layers
model: qwen3-30b-a3b
cluster: {base: hgx-h200, nodes: 2}
precision: bf16
workload: {tokens_per_rank: 256}
goal:
  maximise: tokens_per_s_per_gpu
  space:
    parallel.tp: [1, 2, 8]
    dispatch.strategy: [flat, node_dedup, none]
    dispatch.overlap: [none, two_batch]
    dispatch.dispatch_dtype: [bf16, fp8_block]
"""
MODEL = """
name: whole
model: qwen3-30b-a3b
scope: model
cluster: {base: hgx-h200, usd_per_gpu_hour: 2.0}
precision: bf16
workload: {isl: 512, osl: 256}
balance: {placement: linear}
goal:
  space:
    cluster.nodes: [1, 2]
    parallel.attn_tp: [1]
    parallel.tp: [1, 4]
    dispatch.strategy: [flat, low_latency]
    dispatch.overlap: [none, two_batch]
    dispatch.dispatch_dtype: [bf16, fp8_block]
    workload.tokens_per_rank: [8, 64, 256]
"""


def found(text, *changes):
    return search_file(parse_scenario(text, file="goal.yaml", overrides=changes))[0]


def priced_by_run(text, settings):
    changes = ["goal=null"]
    for path, value in settings.items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        changes += [f"{path}{'.' if name else ''}{name}={part}" for name, part in parts]
    (cell,) = plan_cells(parse_scenario(text, file="goal.yaml", overrides=changes))
    return run_simulated(cell).record


def test_the_best_layer_is_the_best_that_run_prices():
    one = found(LAYER)
    assert one.method == "exhaustive"
    assert len(one.candidates) == one.space.size == 36
    rates = []
    for candidate in one.candidates:
        if candidate.status == OK:
            record = priced_by_run(LAYER, candidate.settings)
            assert candidate.value == pytest.approx(record.tokens_per_s_per_gpu)
            rates.append(record.tokens_per_s_per_gpu)
    assert one.best.value == max(rates)
    assert rates == sorted(rates, reverse=True)
    assert len(rates) >= 12


def test_a_whole_model_is_what_run_says_of_it():
    one = found(MODEL)
    record = priced_by_run(MODEL, one.best.settings)
    figures = one.best.figures
    assert figures.tokens_per_s_per_gpu == pytest.approx(record.tokens_per_s_per_gpu)
    assert (figures.ttft_us, figures.tpot_us) == pytest.approx((record.ttft_us, record.tpot_us))
    assert figures.tokens_per_usd == pytest.approx(1e6 / record.usd_per_million_tokens)
    assert figures.memory_bytes == record.peak_memory_bytes
    low, high = figures.band
    assert low < 1 < high
    assert one.best.range == (one.best.value / high, one.best.value / low)
    assert figures.step_us * low == pytest.approx(record.band_low_us)
    assert figures.step_us * high == pytest.approx(record.band_high_us)


def test_the_ascent_finds_the_best_of_the_whole_space(monkeypatch):
    whole = found(MODEL)
    monkeypatch.setattr(search, "EXHAUSTIVE", 0)
    monkeypatch.setattr(search, "BUDGET", 60)
    climbed = found(MODEL)
    assert (whole.method, climbed.method) == ("exhaustive", "ascent")
    assert len(climbed.candidates) <= 60 < len(whole.candidates)
    assert climbed.best.value == pytest.approx(whole.best.value)


class Landscape(search._Trial):
    """Two hills by the first field: the left one is flat, on the right one two fields must change at once."""

    def _evaluate(self, choice):
        right, a, b, c = choice
        height = 1.0 + (a == b) * a - (a != b) if right else 0.5 + c / 10
        return Candidate(self.space.settings(choice), OK, figures=None, value=height)


def test_the_ascent_starts_on_every_hill_and_changes_two_fields_at_once_around_the_best():
    axes = (search_space.Axis("cluster.nodes", (1, 2)), *(search_space.Axis(f"x.{n}", tuple("pqrs")) for n in range(3)))
    trial = Landscape(search_space.Space({}, axes), None, None)
    assert search._starts(trial.space) == [(0, 0, 0, 0), (1, 0, 0, 0)]
    search._ascend(trial)
    assert trial.best()[:3] == (1, 3, 3)
    assert len(trial.tried) < trial.space.size


def test_limits_hold_and_are_named():
    free, bound = found(MODEL), found(MODEL, "goal.tpot_ms=14", "goal.max_gpus=8")
    assert bound.best.figures.tpot_us <= 14_000
    assert bound.best.figures.gpus <= 8
    assert bound.best.value < free.best.value
    over = [one.reason for one in bound.candidates if one.status == "over_limit"]
    assert any("tpot" in reason and "14" in reason for reason in over)
    assert any("GPUs 16 over the limit of 8" in reason for reason in over)
    narrow = found(MODEL, "goal.max_memory=16GiB")
    assert narrow.best is None or narrow.best.figures.memory_bytes <= 16 * 2**30
    assert any("memory" in one.reason for one in narrow.candidates)


def test_a_goal_for_users_takes_small_batches():
    fast, dense = found(MODEL, "goal.maximise=tokens_per_s_per_user"), found(MODEL)
    batches = [one.best.settings["workload.tokens_per_rank"] for one in (fast, dense)]
    assert batches[0] < batches[1]
    assert fast.best.figures.tpot_us == min(one.figures.tpot_us for one in fast.candidates if one.status == OK)


def test_the_front_is_what_none_beats():
    one = found(MODEL)
    allowed = [c.figures for c in one.candidates if c.status == OK]
    for on in one.front:
        mine = on.figures
        assert not any(
            other.tokens_per_s_per_gpu > mine.tokens_per_s_per_gpu
            and other.tokens_per_s_per_user > mine.tokens_per_s_per_user
            for other in allowed
        )
    assert one.best in one.front
    assert len(one.front) > 1


def test_pareto_front_by_hand():
    rows = np.array([[3.0, 1.0], [2.0, 2.0], [1.0, 3.0], [2.0, 1.0], [1.0, 1.0], [3.0, 1.0]])
    assert pareto_front(rows).tolist() == [True, True, True, False, False, True]


def test_every_loser_has_its_reason():
    text = (
        LAYER.partition("    parallel.tp")[0]
        + """
    parallel.tp: [1, 5]
    dispatch.strategy: [flat, none, low_latency]
    dispatch.overlap: [none]
    dispatch.dispatch_dtype: [bf16]
    workload.tokens_per_rank: [128, 4096]
"""
    )
    one = found(text)
    reasons = {
        (c.settings["parallel.tp"], c.settings["dispatch.strategy"], c.settings["workload.tokens_per_rank"]): why_lost(
            c, one.best, maximise=one.goal.maximise, front=one.front
        )
        for c in one.candidates
    }
    assert [why for why in reasons.values() if not why] == [""]
    assert "5" in reasons[5, "flat", 128]
    assert "parallel" in reasons[5, "flat", 128]
    assert "static buffers" in reasons[1, "low_latency", 4096]
    assert "sends nothing" in reasons[1, "none", 128]
    slower = next(why for why in reasons.values() if "fewer tokens a second of a GPU" in why)
    assert "GPU-us a token" in slower


def test_what_does_not_fit_says_by_how_much():
    text = (
        MODEL.partition("goal:")[0].replace("qwen3-30b-a3b", "deepseek-v3").replace("precision: bf16\n", "")
        + """
parallel: {tp: 1, attn_tp: 1}
dispatch: {strategy: flat, overlap: none, dispatch_dtype: bf16}
goal: {space: {precision: [bf16, fp8_block], workload.tokens_per_rank: [8]}}
"""
    )
    one = found(text)
    reasons = {c.settings["precision"]: c.reason for c in one.candidates}
    assert "does not fit" in reasons["bf16"]
    assert "bytes)" in reasons["bf16"]
    assert one.best.settings["precision"] == "fp8_block"


def test_fields_left_open_are_searched_and_set_ones_stay():
    text = MODEL.partition("goal:")[0] + "goal: {max_gpus: 16}\n"
    read = parse_scenario(text, file="goal.yaml")
    raw = next(read.groups[0].points())[0]
    block = search.Reader(None).read(raw)[0].block
    axes = {axis.path: axis.values for axis in search.space_of(raw, block, block.goal).axes}
    assert axes["cluster.nodes"] == (1, 2)
    assert axes["parallel.tp"] == (1, 2, 4, 8)
    assert {"dispatch.strategy", "dispatch.overlap", "dispatch.dispatch_dtype", "workload.tokens_per_rank"} <= set(axes)
    assert not {"precision", "balance.placement"} & set(axes)


def test_tutels_search_takes_whole_experts_and_two_chunks_on_64_a100():
    """Table 6 of the paper: the best static degree with linear all-to-all is 2 up to 128 GPUs."""
    file = load_scenario("plan-search")
    group = next(one for one in file.groups if one.name == "training-a100")
    raw = next(group.points())[0]
    one = search._search_point(raw, reader=search.Reader(file.folder), group="training-a100")
    best = one.best.settings
    assert (best["parallel.tp"], best["dispatch.strategy"]) == (1, "flat")
    assert best["dispatch.overlap"] == {"kind": "chunk", "degree": 2}


@pytest.mark.parametrize(("text", "words"), [
    (LAYER.replace("maximise: tokens_per_s_per_gpu", "tpot_ms: 5"), "scope model"),
    (LAYER.partition("goal:")[0], "goal"),
    (LAYER.replace("model: qwen3-30b-a3b", "scope: {kind: quantize, rows: 8, columns: 8}"), "quantize"),
])  # fmt: skip
def test_goals_that_cannot_be_are_refused(tmp_path, capfd, text, words):
    path = tmp_path / "goal.yaml"
    path.write_text(text)
    assert main(["plan", str(path), "--search"]) == 2
    assert words in capfd.readouterr().err


def test_the_command_prints_strict_json_and_a_command_that_runs(tmp_path, capfd):
    path = tmp_path / "goal.yaml"
    path.write_text(MODEL)
    assert main(["plan", str(path), "--search", "--format", "json"]) == 0
    (one,) = json.loads(capfd.readouterr().out, parse_constant=lambda name: pytest.fail(name))["searches"]
    assert one["tried"] == one["space_size"] == len(one["losers"]) + 1 == 96
    assert all(loser["why"] for loser in one["losers"])
    assert one["best"]["value_low"] <= one["best"]["value"] <= one["best"]["value_high"]
    assert main(["plan", str(path), "--search"]) == 0
    shown = capfd.readouterr().out
    command = next(line for line in shown.splitlines() if line.startswith("run it: "))
    words = shlex.split(command.removeprefix("run it: "))
    changes = [after for before, after in itertools.pairwise(words) if before == "--set"]
    (cell,) = plan_cells(load_scenario(path, overrides=tuple(changes)))
    assert run_simulated(cell).record.tokens_per_s_per_gpu == pytest.approx(one["best"]["value"])


def test_a_goal_out_of_reach_ends_with_one_and_the_nearest(tmp_path, capfd):
    path = tmp_path / "goal.yaml"
    path.write_text(MODEL.replace("goal:", "goal:\n  tpot_ms: 0.5"))
    assert main(["plan", str(path), "--search"]) == 1
    shown = capfd.readouterr().out
    assert "no combination meets the goal" in shown
    assert "over the limit of 0.5" in shown
