"""Ranks that route differently are told apart."""

from dataclasses import replace

import numpy as np
import pytest

from tests.run.rank_gang import cell
from workbench.comm.execute import DispatchMismatch
from workbench.run.agreement import require_same_routing, routing_digest
from workbench.run.prepare import place_experts
from workbench.workload.traffic import route_all


class Ranks:
    """A rank of a group whose digests are known."""

    def __init__(self, digests, rank):
        self.digests, self.rank = digests, rank

    def gather(self, values):
        assert values == [float(int(self.digests[self.rank], 16))]
        return np.array([[float(int(digest, 16))] for digest in self.digests])


def raised(digests) -> list[str | None]:
    texts = []
    for rank, digest in enumerate(digests):
        try:
            require_same_routing(Ranks(digests, rank), digest)
            texts.append(None)
        except DispatchMismatch as mismatch:
            texts.append(str(mismatch))
    return texts


def test_the_odd_one_out_is_named_and_the_others_are_not():
    digests = ["0123456789ab"] * 2 + ["ffffffffffff"] + ["0123456789ab"]
    texts = raised(digests)
    assert [text is None for text in texts] == [True, True, False, True]
    assert "ranks [0, 1, 3] (digest ffffffffffff, theirs 0123456789ab)" in texts[2]


def test_without_a_majority_every_rank_is_named():
    assert all(raised(["0123456789ab", "ffffffffffff"]))
    assert not any(raised(["0123456789ab"] * 2))
    assert not any(raised(["0123456789ab"]))


@pytest.mark.parametrize("part", ["ids", "weights", "tokens_R", "slots"])
def test_the_digest_sees_every_value(part):
    one = cell()
    traffic, expert_map = route_all(one), place_experts(one)
    before = routing_digest(traffic, expert_map)
    assert routing_digest(route_all(one.model_copy(update={"cell_id": "d"})), place_experts(one)) == before
    if part == "slots":
        expert_map = replace(expert_map, slots=expert_map.slots[::-1])
    else:
        changed = getattr(traffic, part).copy()
        changed.reshape(-1)[-1] = (
            np.nextafter(changed.reshape(-1)[-1], 1, dtype=changed.dtype) if part == "weights" else 1
        )
        traffic = replace(traffic, **{part: changed})
    assert routing_digest(traffic, expert_map) != before
