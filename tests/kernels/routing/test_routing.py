"""Routers against a plain reading of their definitions, and the cases that went wrong elsewhere."""

from math import exp

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.routing import ROUTERS, Routing, draws, expert_capacity, top_k_ids
from kernels.routing import base as routing_base
from kernels.routing.select import _by_unique_keys
from workbench.spec.router import Router

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
NAN, INF = float("nan"), float("inf")
OPTIONS = {name: {} for name in ROUTERS} | {"random": {"seed": 3}, "noisy_topk": {"noise": 0.0}}
BLIND = ("random", "hash")
"""Routers that do not look at the logits."""
LIMITED = ("switch", "batch_prioritized", "expert_choice")
"""Routers whose tokens depend on each other."""
SCORED = [name for name in ROUTERS if name not in BLIND + LIMITED]
GROUPED = ("sigmoid_group", "softmax_group")


def logit(*scores: float) -> list[float]:
    return torch.tensor(scores, dtype=torch.float64).logit().tolist()


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def routed(name: str, logits: torch.Tensor, **options) -> Routing:
    if name == "hash":
        options["token_ids"] = torch.arange(len(logits), device=logits.device)
    return ROUTERS[name](logits, **OPTIONS[name] | options)


def same(one: Routing, other: Routing) -> bool:
    return torch.equal(one.ids, other.ids) and torch.equal(one.weights, other.weights)


def assert_weights(routing: Routing, expected: list[list[float]]) -> None:
    torch.testing.assert_close(routing.weights.cpu(), torch.tensor(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_b01_selection_bias_never_enters_the_weights(device):
    logits = torch.tensor([logit(0.6, 0.5, 0.4, 0.3)], device=device)
    bias = torch.tensor([0, 0, 0.5, 0], device=device)
    for scaling in (1.0, 2.5):
        found = ROUTERS["sigmoid_group"](logits, top_k=2, bias=bias, routed_scaling=scaling)
        assert found.ids.tolist() == [[2, 0]]
        assert_weights(found, [[0.4 * scaling, 0.6 * scaling]])


@pytest.mark.parametrize("name", SCORED)
def test_b01_in_every_router_a_bias_selects_and_weighs_nothing(name):
    logits = normal(50, 16)
    bias = torch.zeros(16)
    bias[5] = 100.0
    found = routed(name, logits, top_k=16, bias=bias)
    plain = routed(name, logits, top_k=16)
    assert (found.ids[:, 0] == 5).all()
    by_expert = [routing.weights.gather(1, routing.ids.argsort(1)) for routing in (found, plain)]
    torch.testing.assert_close(*by_expert)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", GROUPED)
def test_b02_discarded_groups_cannot_win_when_scores_are_negative(name, device):
    scores = logit(0.9, 0.8, 0.1, 0.1, 0.5, 0.5, 0.5, 0.5)
    logits = torch.tensor([scores], device=device)
    bias = torch.full((8,), -1.0, device=device)
    found = ROUTERS[name](logits, top_k=2, bias=bias, num_groups=2, topk_group=1, norm_topk=True)
    assert found.ids.tolist() == [[0, 1]]
    if name == "sigmoid_group":
        assert_weights(found, [[0.529412, 0.470588]])


def test_group_score_is_the_two_best_for_sigmoid_and_the_best_for_softmax():
    scores = logit(0.9, 0.1, 0.1, 0.6, 0.6, 0.1)
    logits = torch.tensor([scores])
    by_sum = ROUTERS["sigmoid_group"](logits, top_k=1, num_groups=2, topk_group=1)
    by_max = ROUTERS["softmax_group"](logits, top_k=1, num_groups=2, topk_group=1)
    assert by_sum.ids.item() == 3
    assert by_max.ids.item() == 0


@pytest.mark.parametrize("device", DEVICES)
def test_b05_softmax_before_or_after_topk(device):
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]], device=device)
    assert_weights(ROUTERS["topk_softmax"](logits, top_k=2), [[0.731059, 0.268941]])
    assert_weights(ROUTERS["softmax_topk"](logits, top_k=2), [[0.731059, 0.268941]])
    assert_weights(ROUTERS["softmax_topk"](logits, top_k=2, norm_topk=False), [[0.643914, 0.236883]])
    assert_weights(ROUTERS["sigmoid_topk"](logits, top_k=2), [[1 / (1 + exp(-2)), 1 / (1 + exp(-1))]])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SCORED)
def test_b08_a_row_of_nan_has_distinct_experts_and_no_weight(name, device):
    logits = normal(3, 8).to(device)
    clean = routed(name, logits, top_k=4)
    logits[1] = NAN
    found = routed(name, logits, top_k=4)
    assert found.ids[1].tolist() == [0, 1, 2, 3]
    assert found.weights[1].tolist() == [0, 0, 0, 0]
    for row in (0, 2):
        assert torch.equal(found.ids[row], clean.ids[row])
        assert torch.equal(found.weights[row], clean.weights[row])


@pytest.mark.parametrize("name", SCORED)
def test_b08_one_nan_or_infinity_spoils_no_other_expert(name):
    logits = torch.tensor([[1.0, NAN, 0.5, -INF], [1.0, INF, 0.5, 0.25]])
    found = routed(name, logits, top_k=3)
    assert found.ids[0].tolist() == [0, 2, 1]
    assert found.ids[1].tolist() == [1, 0, 2]
    assert found.weights.isfinite().all()
    assert found.weights[0, 2] == 0
    assert (found.weights[0, :2] > 0).all()


def test_b08_a_nan_token_is_dropped_by_switch_and_takes_no_capacity():
    logits = torch.tensor([[NAN, NAN], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    found = ROUTERS["switch"](logits, top_k=1, capacity_factor=1.0)
    assert found.ids.tolist() == [[-1], [0], [0], [-1]]
    assert (found.weights[[0, 3]] == 0).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [name for name in ROUTERS if name not in BLIND])
def test_b10_ties_go_to_the_lower_index_every_time(name, device):
    options = {"top_k": 2} | ({"capacity_factor": 100.0} if name in LIMITED else {})
    flat = torch.zeros(64, 8, device=device)
    assert (routed(name, flat, **options).ids[:, :2] == torch.tensor([0, 1], device=device)).all()
    edge = torch.tensor([[0.0, 1.0, 2.0, 1.0, 1.0, 0.0, 0.0, 0.0]], device=device)
    assert routed(name, edge, **options).ids[:, :2].tolist() == [[2, 1]]
    mixed = normal(512, 64, seed=1).mul(2).round().to(device)
    first = routed(name, mixed, top_k=2)
    assert all(same(routed(name, mixed, top_k=2), first) for _ in range(20))


scores_of_few_values = st.integers(1, 40).flatmap(
    lambda experts: st.tuples(
        st.lists(st.lists(st.integers(-2, 2), min_size=experts, max_size=experts), min_size=1, max_size=8),
        st.integers(1, experts),
    )
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(scores_of_few_values)
def test_b10_top_k_equals_a_stable_sort(case):
    rows, k = case
    scores = torch.tensor(rows, dtype=torch.float32) * torch.tensor([1.0, -0.5])[len(rows) % 2]
    expected = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
    assert torch.equal(top_k_ids(scores, k), expected)
    # What CUDA runs, so that both devices give the same.
    assert torch.equal(_by_unique_keys(scores, k), expected)


def test_b10_top_k_orders_zeros_infinities_and_subnormals():
    scores = torch.tensor([[-0.0, 0.0, -INF, INF, 1e-45, -1e-45, -3.0, 3.0]])
    expected = [[3, 7, 4, 0, 1, 5, 6, 2]]
    assert top_k_ids(scores, 8).tolist() == expected
    assert _by_unique_keys(scores, 8).tolist() == expected


@pytest.mark.parametrize("name", [*SCORED, *BLIND, "batch_prioritized"])
def test_b14_top_1_keeps_its_dimension(name):
    logits = normal(3, 5)
    fixed = (*BLIND, "topk_softmax", "noisy_topk")
    options = {} if name in fixed else {"norm_topk": True}
    found = routed(name, logits, top_k=1, **options | ({"capacity_factor": 9.0} if name in LIMITED else {}))
    assert found.weights.tolist() == [[1.0]] * 3
    if name == "softmax_topk":
        plain = ROUTERS[name](logits, top_k=1, norm_topk=False)
        torch.testing.assert_close(plain.weights, logits.softmax(1).amax(1, keepdim=True))


def test_b12_k_equal_to_the_experts_takes_all_once():
    logits = normal(6, 4)
    found = ROUTERS["softmax_topk"](logits, top_k=4)
    torch.testing.assert_close(found.weights.gather(1, found.ids.argsort(1)), logits.softmax(1))
    assert ROUTERS["softmax_topk"](normal(6, 1), top_k=1).weights.tolist() == [[1.0]] * 6
    for top_k in (0, 5):
        for name in ROUTERS:
            with pytest.raises(ValueError, match=f"top_k {top_k} and num_experts 4"):
                routed(name, logits, top_k=top_k)


@pytest.mark.parametrize("device", DEVICES)
def test_b15_capacity_is_at_most_the_tokens(device):
    logits = normal(4, 2).to(device)
    assert expert_capacity(num_tokens=4, num_experts=2, top_k=2, capacity_factor=2.0) == 4
    found = ROUTERS["switch"](logits, top_k=2, capacity_factor=2.0)
    assert (found.ids >= 0).all()


def test_capacity_is_exact_in_decimals():
    assert expert_capacity(num_tokens=100, num_experts=10, top_k=1, capacity_factor=1.1) == 11
    assert expert_capacity(num_tokens=101, num_experts=10, top_k=1, capacity_factor=1.1) == 12


@pytest.mark.parametrize("device", DEVICES)
def test_switch_drops_in_token_order_first_choices_first(device):
    logits = torch.tensor([[2.0, 1.0, 0.0]] * 3 + [[0.0, 2.0, 1.0]], device=device)
    found = ROUTERS["switch"](logits, top_k=1, capacity_factor=1.5)
    assert found.ids.tolist() == [[0], [0], [-1], [1]]
    both = ROUTERS["switch"](logits, top_k=2, capacity_factor=0.75)
    assert both.ids.tolist() == [[0, 1], [0, -1], [-1, -1], [1, 2]]
    assert (both.weights[both.ids == -1] == 0).all()
    torch.testing.assert_close(both.weights[0], logits[0].softmax(0)[:2])


def test_switch_over_parts_counts_all_tokens(monkeypatch):
    logits = normal(1000, 7)
    whole = ROUTERS["switch"](logits, top_k=2, capacity_factor=0.8)
    monkeypatch.setattr(routing_base, "ROWS_A_PART", 64)
    assert same(ROUTERS["switch"](logits, top_k=2, capacity_factor=0.8), whole)
    kept = whole.ids[whole.ids >= 0].bincount(minlength=7)
    assert kept.max() == expert_capacity(num_tokens=1000, num_experts=7, top_k=2, capacity_factor=0.8)


@pytest.mark.parametrize("device", DEVICES)
def test_b17_random_draws_without_replacement(device):
    route = ROUTERS["random"]
    logits = torch.zeros(1000, 8, device=device)
    everyone = route(logits, top_k=8, seed=0)
    assert (everyone.ids.sort(1).values == torch.arange(8, device=device)).all()
    some = route(logits, top_k=2, seed=0)
    assert (some.ids[:, 0] != some.ids[:, 1]).all()
    assert some.ids.flatten().bincount().min() > 200
    assert same(route(logits, top_k=2, seed=0), some)
    assert not torch.equal(route(logits, top_k=2, seed=1).ids, some.ids)
    assert torch.equal(some.ids.cpu(), route(logits.cpu(), top_k=2, seed=0).ids)


def plain_group_routing(row, bias, *, name, top_k, num_groups, topk_group):
    """One token, by the words of the definition. Returns the ids and the unbiased scores."""
    scores = (row.sigmoid() if name == "sigmoid_group" else row.softmax(0)).tolist()
    choice = [score + shift for score, shift in zip(scores, bias.tolist(), strict=True)]
    size = len(scores) // num_groups
    members = [range(group * size, (group + 1) * size) for group in range(num_groups)]
    best = 2 if name == "sigmoid_group" else 1
    group_scores = [sum(sorted((choice[e] for e in group), reverse=True)[:best]) for group in members]
    kept = sorted(range(num_groups), key=lambda group: -group_scores[group])[:topk_group]
    experts = [expert for group in kept for expert in members[group]]
    ids = sorted(experts, key=lambda expert: -choice[expert])[:top_k]
    return ids, [scores[expert] for expert in ids]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize(
    ("experts", "num_groups", "topk_group", "top_k"), [(256, 8, 4, 8), (36, 3, 2, 5), (8, 8, 3, 3)]
)
def test_group_routers_follow_their_definition(name, experts, num_groups, topk_group, top_k, device):
    logits, bias = normal(40, experts), normal(experts, seed=1) * 0.1
    groups = {"num_groups": num_groups, "topk_group": topk_group}
    found = ROUTERS[name](logits.to(device), top_k=top_k, bias=bias.to(device), norm_topk=False, **groups)
    for token in range(40):
        ids, scores = plain_group_routing(logits[token].double(), bias.double(), name=name, top_k=top_k, **groups)
        assert found.ids[token].tolist() == ids
        assert found.weights[token].tolist() == pytest.approx(scores, rel=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", GROUPED)
def test_b10_ties_across_groups_go_to_the_lower_index_whichever_group_is_better(name, device):
    logits = torch.tensor([[1.0, 0.0, 1.0, 3.0, -5.0, -5.0]], device=device)
    assert ROUTERS[name](logits, top_k=2, num_groups=3, topk_group=2).ids.tolist() == [[3, 0]]


def test_b10_equal_logits_score_alike_wherever_they_stand():
    logits = normal(50, 1, seed=2).expand(50, 37).contiguous()
    found = ROUTERS["sigmoid_group"](logits, top_k=3, bias=torch.zeros(37))
    assert (found.ids == torch.arange(3)).all()
    whole = ROUTERS["sigmoid_topk"](logits, top_k=1)
    rows = [ROUTERS["sigmoid_topk"](logits[row : row + 1], top_k=1).weights for row in range(50)]
    assert torch.equal(torch.cat(rows), whole.weights)


def test_one_group_equals_no_groups():
    logits, bias = normal(64, 48), normal(48, seed=1)
    one = ROUTERS["sigmoid_group"](logits, top_k=6, bias=bias)
    all_groups = ROUTERS["sigmoid_group"](logits, top_k=6, bias=bias, num_groups=4, topk_group=4)
    assert same(one, all_groups)


@pytest.mark.parametrize("name", ROUTERS)
def test_results_have_the_promised_form(name, monkeypatch):
    logits = normal(100, 16)
    width = 16 if name == "expert_choice" else 3
    found = routed(name, logits, top_k=3)
    assert (found.ids.dtype, found.weights.dtype) == (torch.int32, torch.float32)
    assert found.ids.shape == found.weights.shape == (100, width)
    assert routed(name, logits[:0], top_k=3).ids.shape == (0, width)
    assert (found.weights[:, 1:] <= found.weights[:, :-1]).logical_or(found.ids[:, :-1] == -1).all()
    monkeypatch.setattr(routing_base, "ROWS_A_PART", 7)
    monkeypatch.setattr(draws, "_ROWS_A_PART", 9)
    assert same(routed(name, logits, top_k=3), found)
    half = routed(name, logits.bfloat16(), top_k=3)
    assert same(half, routed(name, logits.bfloat16().float(), top_k=3))


def test_bad_groups_and_shapes_are_refused():
    route, logits = ROUTERS["sigmoid_group"], normal(2, 12)
    with pytest.raises(ValueError, match="num_experts 12 does not divide into num_groups 5"):
        route(logits, top_k=2, num_groups=5)
    with pytest.raises(ValueError, match="topk_group 4, num_groups 3"):
        route(logits, top_k=2, num_groups=3, topk_group=4)
    with pytest.raises(ValueError, match="top_k 5 exceeds the 4 experts of topk_group 1"):
        route(logits, top_k=5, num_groups=3, topk_group=1)
    with pytest.raises(ValueError, match=r"bias must be \[E\]"):
        route(logits, top_k=2, bias=torch.zeros(11))
    with pytest.raises(ValueError, match=r"logits must be \[T, E\]"):
        route(logits[0], top_k=2)


def test_options_are_the_fields_of_the_spec():
    """A router takes the spec's own fields by name, so a cell's router can be passed on as it is."""
    union = Router.__args__[0]
    specs = {member.model_fields["kind"].default: member for member in union.__args__}
    outside = {"kind", "weight_on", "router_bias", "correction_bias", "projection", "vocabulary"}
    for name in ROUTERS:
        options = {key: field.default for key, field in specs[name].model_fields.items() if key not in outside}
        assert routed(name, normal(4, 8), top_k=1, **options).ids.shape == (4, 8 if name == "expert_choice" else 1)
