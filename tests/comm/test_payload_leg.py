"""The transport adds little to the backend: a payload leg beside a bare all-to-all of the same splits.

Same processes, one after the other in turn, so that whatever else the machine does slows both alike.
"""

import time

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.run.rank_gang import cell, run_ranks
from workbench.comm import transport as transport_module
from workbench.comm.bare import bare_plan
from workbench.comm.rank_plan import RankHop, prepare_rank
from workbench.spec.scenario import AllToAllScope

SIZE = 8 * 2**20
PAIRS, REPEATS = 40, 5
UNEVEN = {"kind": "hot_rank", "factor": 2, "rank": 1}
SKEWS = {"even": "uniform", "uneven": UNEVEN}


def parts(skew, context) -> tuple[RankHop, torch.Tensor, torch.Tensor]:
    """The hop of a bare exchange, this rank's rows, and room for those that come in."""
    scope = AllToAllScope(kind="all_to_all", bytes_per_rank=SIZE)
    plan, row_bytes = bare_plan(cell(ranks=context.world, scope=scope, skew=skew))
    (hop,) = prepare_rank(plan, rank=context.rank).hops
    rows = torch.randint(0, 256, (len(hop.send_rows), row_bytes), dtype=torch.uint8)
    return hop, rows, torch.empty(sum(hop.recv_counts), row_bytes, dtype=torch.uint8)


def leg_and_bare(skew, context) -> list[list[tuple[float, float]]]:
    """Seconds of (payload leg, bare collective) of this rank, [repeats][pairs]."""
    hop, rows, place = parts(skew, context)

    def bare() -> torch.Tensor:
        dist.all_to_all_single(place, rows, hop.recv_counts, hop.send_counts)
        return place

    def leg() -> torch.Tensor:
        return context.transport.carry(rows, hop)

    def seconds(call) -> float:
        context.barrier()
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    assert torch.equal(leg(), bare())
    order = [(leg, bare), (bare, leg)]
    repeats = []
    for _ in range(REPEATS):
        pairs = []
        for pair in range(PAIRS):
            times = {call: seconds(call) for call in order[pair % 2]}
            pairs.append((times[leg], times[bare]))
        repeats.append(pairs)
    return repeats


def own_all_to_all(context) -> bool:
    """Whether the transport leaves an all-to-all to gloo; either way it brings what gloo brings."""
    hop, rows, place = parts(UNEVEN, context)
    dist.all_to_all_single(place, rows, hop.recv_counts, hop.send_counts)
    assert torch.equal(context.transport.carry(rows, hop), place)
    return context.transport._has_whole


def apart(context) -> bool:
    """The same, with rank 1 in a network of its own."""
    if context.rank == 1:
        transport_module._host_number = lambda: 7
    return own_all_to_all(context)


def one_host(context) -> tuple[bool, dict[str, list]]:
    """``own_all_to_all``, and ``leg_and_bare`` of each skew."""
    return own_all_to_all(context), {name: leg_and_bare(skew, context) for name, skew in SKEWS.items()}


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(one_host, world=2)


@pytest.mark.parametrize("skew", SKEWS)
def test_the_payload_leg_reaches_a_bare_collective_of_the_same_splits(ranks, skew):
    times = np.array([legs[skew] for _, legs in ranks]).max(axis=0)
    speed = np.median(times[..., 1] / times[..., 0], axis=1)
    assert np.median(speed) >= 0.85, f"leg over collective by repeat: {speed.round(2).tolist()}"


def test_gloo_may_send_as_it_likes_within_a_host_only(ranks):
    """Between hosts all receives come first; every rank decides alike."""
    assert [own for own, _ in ranks] == [True, True]
    assert run_ranks(apart, world=3) == [False] * 3
