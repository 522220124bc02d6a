"""Every strategy on every traffic and wire format: what a rank gets, gives back and counts, against the oracle."""

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch

from kernels.formats import FORMATS
from tests.workload.factory import make_cell
from workbench.balance.placement import expert_map_of, to_slots
from workbench.comm.execute import combine, dispatch, received_ids, verify_arrivals
from workbench.comm.gradients import WIRE_DTYPE, combine_backward, dispatch_backward
from workbench.comm.oracle import expected_buffer, expected_sums, misdelivered, plain_sums
from workbench.comm.payload import FORMAT_OF_DTYPE, decode_rows, encode_rows, encoded_bytes
from workbench.comm.rank_plan import prepare_rank
from workbench.comm.strategies import STRATEGIES, make_plan
from workbench.spec.dispatch import Dispatch
from workbench.spec.errors import Unsupported
from workbench.spec.workload import Workload
from workbench.workload.data import rank_activations
from workbench.workload.routed import RoutedTraffic
from workbench.workload.traffic import route_all

DTYPES = ("bf16", "fp8_block", "nvfp4")
TRAFFICS = {
    "uniform": {},
    "hot_rank": {"skew": {"kind": "hot_rank", "factor": 6.0}},
    "empty_rank": {"sources": {"kind": "empty_rank", "rank": 0}},
    "ragged": {"sources": {"kind": "ragged", "cv": 0.5}},
}
VARIANTS = {name: {"strategy": name} for name in STRATEGIES if name != "none"} | {
    "pairwise_xor": {"strategy": "pairwise", "pairing": "xor"},
    "multilevel_dedup": {"strategy": "multilevel_dedup", "levels": (4,)},
}
EXPERTS, HIDDEN, TOKENS, TOP_K = 16, 160, 13, 4


def exchange_cases():
    """(name, variant, dtype, traffic) of all; MXFP8, which differs by its scales alone, on one traffic."""
    parts = [*product(VARIANTS, DTYPES, TRAFFICS), *product(VARIANTS, ["mxfp8"], ["uniform"])]
    return [("-".join(case), *case) for case in parts]


@cache
def routed(world, kind):
    """The cell, its traffic and the slots; in ``empty_rank`` the last rank's experts get no token either."""
    workload = Workload(tokens_per_rank=TOKENS, seed=3, **TRAFFICS[kind])
    redundant = -EXPERTS % world
    cell = make_cell(ranks=world, experts=EXPERTS, top_k=TOP_K, hidden=HIDDEN, redundant=redundant, workload=workload)
    traffic = route_all(cell)
    expert_map = expert_map_of(cell, traffic)
    if kind == "empty_rank" and world > 1:
        unheard = to_slots(expert_map, traffic.ids) // expert_map.slots_per_rank == world - 1
        ids, weights = np.where(unheard, -1, traffic.ids), np.where(unheard, 0, traffic.weights)
        traffic = RoutedTraffic(ids, weights, tokens_R=traffic.tokens_R)
    return cell, traffic, expert_map


@cache
def planned(world, kind, variant):
    """The plan, or the Unsupported that stands for it; and the slots that it must serve."""
    try:
        cell, traffic, expert_map = routed(world, kind)
        cell = cell.model_copy(update={"dispatch": Dispatch(**VARIANTS[variant])})
        return make_plan(cell, traffic, expert_map), to_slots(expert_map, traffic.ids)
    except Unsupported as reason:
        return reason, None


@cache
def tokens_on_the_wire(world, kind, dtype):
    cell = routed(world, kind)[0]
    return [encode_rows(rank_activations(cell, rank=peer), dtype) for peer in range(world)]


@cache
def noise(rows_R, columns, purpose):
    """Numbers for every rank, as many rows as it has."""
    generator = torch.Generator().manual_seed(purpose)
    return [torch.randn(rows, columns, generator=generator) for rows in rows_R]


def rule_against(world, kind, variant):
    """What the reason must say where a case cannot be had."""
    if kind == "ragged" and world == 1:
        return "workload.sources.cv: 0.5 cannot be reached"
    return "xor needs a power of two" if variant == "pairwise_xor" and world in (3, 6) else None


def last_rows(plan):
    return tuple(plan.num_rows(peer) for peer in range(plan.num_ranks))


def check_exchange(rank, world, *, variant, dtype, kind, transport):
    """One case on one rank; raises AssertionError with what differs.

    Gradients travel in bf16 whatever the formats of the forward pass, so its backward is that of all formats.
    """
    plan, slots = planned(world, kind, variant)
    rule = rule_against(world, kind, variant)
    if rule:
        assert isinstance(plan, Unsupported)
        assert rule in str(plan)
        return
    mine = prepare_rank(plan, rank=rank, device=transport.device)
    assert misdelivered(plan, slots, routed(world, kind)[1].weights) == []
    check_there(rank, plan, mine, transport, tokens_on_the_wire(world, kind, dtype))
    rows = noise(last_rows(plan), HIDDEN, 1)
    y = combine(mine, transport, rows[rank].to(transport.device), dtype=dtype)
    assert torch.equal(y.cpu(), expected_sums(plan, rows, dtype=dtype)[rank]), "sums are not those of the plan"
    check_near(y.cpu(), plain_sums(plan, rows)[rank], dtype, hops=len(plan.hops))
    check_bytes(rank, plan, transport, plan.combine_traffic(encoded_bytes(HIDDEN, dtype)))
    if dtype == WIRE_DTYPE:
        check_backward(rank, plan, mine, transport)


def check_there(rank, plan, mine, transport, encoded):
    buffer = dispatch(mine, transport, encoded[rank].to(transport.device))
    assert torch.equal(buffer.cpu(), expected_buffer(plan, rank, encoded)), "buffer differs from the oracle"
    verify_arrivals(mine, *received_ids(mine, buffer))
    check_bytes(rank, plan, transport, plan.traffic(buffer.shape[1]))


def check_near(found, wanted, dtype, *, hops):
    """Every hop rounds once to the format."""
    allowed = hops * FORMATS[FORMAT_OF_DTYPE[dtype]].tolerance
    error = (found - wanted).norm() / wanted.norm().clamp(min=1e-9)
    assert error <= allowed, f"combine is off by {error}, allowed {allowed}"


def check_bytes(rank, plan, transport, legs):
    """Counted by the transport in what it sent: the plan's, by class of link, and messages."""
    counted = transport.reset()
    for link, mask in plan.topology.link_masks().items():
        expected = sum(int(sent[rank][mask[rank]].sum()) for _, sent, _ in legs)
        seen = getattr(counted, f"{link}_bytes")
        assert seen == expected, f"{link}: {seen} bytes in buffers, {expected} planned"
    messages = sum(int(number[rank].sum()) for _, _, number in legs)
    assert counted.messages == messages, f"{counted.messages} messages, {messages} planned"


def check_backward(rank, plan, mine, transport):
    grads = noise(plan.tokens_R, HIDDEN, 2)
    bare = [encode_rows(part, WIRE_DTYPE) for part in grads]
    wanted = decode_rows(expected_buffer(replace(plan, carried=None), rank, bare), HIDDEN, WIRE_DTYPE)
    got = combine_backward(mine, transport, grads[rank].to(transport.device))
    assert torch.equal(got.cpu(), wanted), "the gradient of combine is not a copy of its token's"
    check_bytes(rank, plan, transport, plan.traffic(2 * HIDDEN))
    rows, choices = noise(last_rows(plan), HIDDEN, 3), noise(last_rows(plan), TOP_K, 4)
    wanted = expected_sums(plan, [torch.cat(pair, dim=1) for pair in zip(rows, choices, strict=True)], dtype=WIRE_DTYPE)
    back = dispatch_backward(mine, transport, rows[rank].to(transport.device), choices[rank].to(transport.device))
    assert torch.equal(torch.cat(back, dim=1).cpu(), wanted[rank]), "gradients of copies do not add up"
    check_near(back[0].cpu(), plain_sums(plan, rows)[rank], WIRE_DTYPE, hops=len(plan.hops))
    check_bytes(rank, plan, transport, plan.combine_traffic(2 * (HIDDEN + TOP_K)))


def check_node_dedup_crosses_once_a_pair(rank, world, *, transport):
    """Rows that really left for another node: one for each (token, other node) with an expert of its."""
    for kind in ("uniform", "hot_rank", "empty_rank"):
        plan, slots = planned(world, kind, "node_dedup")
        encoded = tokens_on_the_wire(world, kind, "bf16")
        buffer = dispatch(
            prepare_rank(plan, rank=rank, device=transport.device), transport, encoded[rank].to(transport.device)
        )
        node_of = plan.topology.node_of
        nodes_TK = np.where(slots[rank] >= 0, node_of[np.maximum(slots[rank], 0) // plan.slots_per_rank], node_of[rank])
        pairs = sum(len(set(nodes_K) - {node_of[rank]}) for nodes_K in nodes_TK.tolist())
        assert transport.reset().scale_out_bytes == pairs * buffer.shape[1]


def check_refusals(rank, world, *, transport):
    plan, _ = planned(world, "uniform", "flat")
    with pytest.raises(ValueError, match=f"{TOKENS + 1} tokens for a plan of {TOKENS}"):
        dispatch(prepare_rank(plan, rank=rank), transport, torch.zeros(TOKENS + 1, 8, dtype=torch.uint8))
    with pytest.raises(ValueError, match="rows for a buffer of"):
        combine(prepare_rank(plan, rank=rank), transport, torch.zeros(plan.num_rows(rank) + 1, HIDDEN), dtype="bf16")
