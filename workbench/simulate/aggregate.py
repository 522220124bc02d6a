"""Counts of an expert-parallel group too large to count rank by rank: ports and nodes, never ranks by ranks.

R ranks, N nodes, E experts, S slots a rank. The tokens of all ranks are taken as drawn from one population: a sample of
them is routed, tells how often an expert is chosen and how many ranks and nodes a token reaches, and totals are drawn
at the true number of tokens. So a rank's own tokens may differ from another's by chance alone; skews that give each
rank other tokens (topics) keep their mean over ranks. A strategy has its entry in PORTS; the others are unsupported.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from workbench.balance.dealing import to_slots
from workbench.balance.dynamics import reached
from workbench.balance.expert_map import ExpertMap
from workbench.balance.history import placed_before
from workbench.comm.topology import topology_of
from workbench.simulate.loads import HopLoad, PortLoad, places
from workbench.simulate.sampling import full_counts
from workbench.spec.errors import Unsupported
from workbench.spec.scenario import Cell
from workbench.workload.loads import slot_counts
from workbench.workload.sources import source_tokens
from workbench.workload.traffic import route_some

MAX_SAMPLED_TOKENS = 65_536
MAX_SAMPLED_LOGITS = 1 << 21
_MANY = 1e9


@dataclass(frozen=True)
class Population:
    """What a token of the group does: ``pairs_R`` at the true number of tokens, and a token's chance to reach each rank
    ``rank_R`` and node ``node_N``; ``ranks`` and ``nodes`` are mean and standard deviation of how many it reaches."""

    tokens_R: np.ndarray
    node_R: np.ndarray
    place_R: np.ndarray
    pairs_R: np.ndarray
    rank_R: np.ndarray
    node_N: np.ndarray
    ranks: tuple[float, float]
    nodes: tuple[float, float]
    generator: np.random.Generator

    @property
    def pair_R(self) -> np.ndarray:
        """Pairs of a token at each rank."""
        return self.pairs_R / max(1.0, self.tokens_R.sum())


@dataclass(frozen=True)
class Aggregate:
    """Counts of ``traffic.GroupTraffic``, whose fields have these names; ``sampled`` tokens were routed."""

    tokens_R: np.ndarray
    sampled: int
    scale: float
    pairs_R: np.ndarray
    touched_R: np.ndarray
    expert_tokens_E: np.ndarray
    touched_experts: int
    dropped_pairs: float
    hops: tuple[HopLoad, ...]
    node_R: np.ndarray


def sampled_tokens(cell: Cell) -> int:
    """Tokens of the whole group that are routed."""
    assert cell.model is not None
    return max(1, min(MAX_SAMPLED_TOKENS, MAX_SAMPLED_LOGITS // cell.model.num_experts))


def aggregate(cell: Cell, *, layer: int, step: int, parts: int = 1) -> Aggregate:
    """Counts of one layer and step, of one of ``parts`` equal parts of its tokens.

    Raises Unsupported for a strategy without an entry in PORTS.
    """
    assert cell.model is not None
    strategy = cell.dispatch.strategy
    if strategy not in PORTS:
        raise Unsupported(
            f"dispatch.strategy {strategy}: groups of more than 512 ranks are priced by port, which is there for "
            f"{', '.join(PORTS)}"
        )
    ids_SK, dropped = route_some(
        cell, layer=layer, step=step, max_tokens=sampled_tokens(cell), steer=reached(cell, layer=layer)
    )
    expert_map, tokens_R = placed_before(cell, layer=layer), source_tokens(cell) / parts
    total = float(tokens_R.sum())
    scale = total / len(ids_SK) if len(ids_SK) else 1.0
    # Without the scatter of a full batch, which is drawn for each rank below.
    loads_E = full_counts(slot_counts(ids_SK, cell.model.num_experts), scale=_MANY) * (scale / _MANY)
    slots_RS = (loads_E / expert_map.copies_E)[expert_map.slots]
    population = _population(cell, expert_map, ids_SK, tokens_R, slots_RS, place=(layer, step))
    return Aggregate(
        tokens_R=tokens_R.astype(np.float64),
        sampled=len(ids_SK),
        scale=scale,
        pairs_R=population.pairs_R,
        touched_R=-np.expm1(-slots_RS).sum(axis=1),
        expert_tokens_E=loads_E,
        touched_experts=int((loads_E > 0).sum()),
        dropped_pairs=dropped * scale,
        hops=PORTS[strategy](population),
        node_R=population.node_R,
    )


def _population(
    cell: Cell, expert_map: ExpertMap, ids_SK: np.ndarray, tokens_R: np.ndarray, slots_RS: np.ndarray, *,
    place: tuple[int, int],
) -> Population:  # fmt: skip
    node_R, generator = topology_of(cell).node_of, np.random.default_rng((cell.workload.seed, cell.ep, *place))
    rank_SK = to_slots(expert_map, ids_SK[None])[0] // expert_map.slots_per_rank
    node_SK = np.where(ids_SK >= 0, node_R[np.maximum(rank_SK, 0)], -1)
    ranks, nodes = (_distinct(np.where(ids_SK >= 0, at, -1)) for at in (rank_SK, node_SK))
    missing_RS = np.log1p(-np.minimum(slots_RS / max(1.0, float(tokens_R.sum())), 1 - 1e-12))
    missing_R = missing_RS.sum(axis=1)
    pairs_R = _drawn(slots_RS.sum(axis=1), generator)
    return Population(
        tokens_R=tokens_R.astype(np.float64),
        node_R=node_R,
        place_R=places(node_R),
        pairs_R=pairs_R,
        rank_R=_chances(missing_R, ranks[0]),
        node_N=_chances(np.bincount(node_R, missing_R), nodes[0]),
        ranks=ranks,
        nodes=nodes,
        generator=generator,
    )


def _distinct(at_SK: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation over tokens of the distinct values, those below 0 left out."""
    if not at_SK.size:
        return 0.0, 0.0
    ordered = np.sort(at_SK, axis=1)
    first = np.ones(ordered.shape, bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    counts = (first & (ordered >= 0)).sum(axis=1)
    return float(counts.mean()), float(counts.std())


def _chances(missing: np.ndarray, mean: float) -> np.ndarray:
    """Chances from the logarithms of not being reached, so that they sum to what a token reaches."""
    chances = -np.expm1(missing)
    return chances * (mean / chances.sum()) if chances.any() else chances


def _drawn(mean: np.ndarray, generator: np.random.Generator, *, deviation: np.ndarray | None = None) -> np.ndarray:
    """Totals of many independent draws around ``mean``, by default those of a Poisson variable; the sum is kept."""
    spread = np.sqrt(mean) if deviation is None else deviation
    drawn = np.maximum(0.0, mean + spread * generator.standard_normal(mean.shape))
    return drawn * (mean.sum() / drawn.sum()) if drawn.any() else mean


def _stay(population: Population) -> tuple[HopLoad, ...]:
    return ()


def _flat(population: Population) -> tuple[HopLoad, ...]:
    """A row for each pair, straight to its rank."""
    p, pair_R = population, population.pair_R
    total_N = np.bincount(p.node_R, pair_R)
    at_place = np.bincount(p.place_R, pair_R)
    all_pairs = pair_R.sum()
    own_node_R, own_place_R = total_N[p.node_R], at_place[p.place_R]
    sent = _classes(p.tokens_R, up=own_node_R - pair_R, rail=own_place_R - pair_R,
                    cross=all_pairs - own_node_R - own_place_R + pair_R)  # fmt: skip
    tokens_N, tokens_place = np.bincount(p.node_R, p.tokens_R), np.bincount(p.place_R, p.tokens_R)
    node_tokens_R, place_tokens_R = tokens_N[p.node_R], tokens_place[p.place_R]
    received = _classes(pair_R, up=node_tokens_R - p.tokens_R, rail=place_tokens_R - p.tokens_R,
                        cross=p.tokens_R.sum() - node_tokens_R - place_tokens_R + p.tokens_R)  # fmt: skip
    each = p.tokens_R.mean() * pair_R
    messages = _peers(p, each)
    return (_hop("all_to_all", p, sent, received, messages, self_R=p.tokens_R * pair_R, per_row=False),)


def _low_latency(population: Population) -> tuple[HopLoad, ...]:
    """As flat, every row a message into a buffer that is there already."""
    (hop,) = _flat(population)
    sent, received = (
        PortLoad(side.up_R, side.rail_R, side.cross_R, side.up_R, side.rail_R, side.cross_R, side.out_peers_R)
        for side in (hop.sent, hop.received)
    )
    return (HopLoad("low_latency", hop.node_R, sent, received, hop.self_R, hop.peer_R, hop.packed_R, True, True),)


def _node_dedup(population: Population) -> tuple[HopLoad, ...]:
    """A row for each node of a token to the rank at its place there, then one for each rank of the node."""
    p = population
    own_R, all_nodes = p.node_N[p.node_R], p.nodes[0]
    tokens_place = np.bincount(p.place_R, p.tokens_R)
    from_R = tokens_place[p.place_R]  # tokens whose copies land on the rank
    none_R = np.zeros_like(own_R)
    scatter_R = np.sqrt(p.tokens_R) * p.nodes[1]
    sent_R = _drawn(p.tokens_R * (all_nodes - own_R), p.generator, deviation=scatter_R)
    landed_R = _drawn(own_R * (from_R - p.tokens_R), p.generator)
    landed_R *= sent_R.sum() / landed_R.sum() if landed_R.any() else 0.0
    each_N = p.tokens_R.mean() * p.node_N
    rails = -np.expm1(-each_N).sum() + np.expm1(-each_N)[p.node_R]
    out = _hop("scale_out", p, (none_R, sent_R, none_R), (none_R, landed_R, none_R), (none_R, rails, none_R),
               self_R=p.tokens_R * own_R)  # fmt: skip
    held_N = np.bincount(p.node_R, from_R)
    rank_N = np.bincount(p.node_R, p.rank_R)
    up_sent = from_R * (rank_N[p.node_R] - p.rank_R)
    up_received = p.rank_R * (held_N[p.node_R] - from_R)
    peers = np.bincount(p.node_R)[p.node_R] - 1.0
    inside = _hop("scale_up", p, (up_sent, none_R, none_R), (up_received, none_R, none_R), (peers, none_R, none_R),
                  self_R=from_R * p.rank_R)  # fmt: skip
    return out, inside


PORTS: dict[str, Callable[[Population], tuple[HopLoad, ...]]] = {
    "none": _stay,
    "flat": _flat,
    "packed": lambda population: tuple(replace(hop, name="packed") for hop in _flat(population)),
    "low_latency": _low_latency,
    "node_dedup": _node_dedup,
}
"""Strategy -> its hops by port."""

Classes = tuple[np.ndarray, np.ndarray, np.ndarray]


def _classes(factor_R: np.ndarray, *, up: np.ndarray, rail: np.ndarray, cross: np.ndarray) -> Classes:
    return factor_R * np.maximum(up, 0.0), factor_R * np.maximum(rail, 0.0), factor_R * np.maximum(cross, 0.0)


def _peers(population: Population, each_R: np.ndarray) -> Classes:
    """Messages of a rank by class of link: peers whose block, of ``each_R`` rows in the mean, is not empty."""
    p, some_R = population, -np.expm1(-each_R)
    node, place = np.bincount(p.node_R, some_R)[p.node_R], np.bincount(p.place_R, some_R)[p.place_R]
    return node - some_R, place - some_R, np.maximum(0.0, some_R.sum() - node - place + some_R)


def _hop(
    name: str, population: Population, sent: Classes, received: Classes, messages: Classes, *, self_R: np.ndarray,
    per_row: bool = False,
) -> HopLoad:  # fmt: skip
    most = population.tokens_R.size - 1.0
    counted = tuple(np.minimum(part, most) for part in messages)
    peers = np.rint(counted[1] + counted[2]).astype(np.int64)
    ports = [PortLoad(*side, *counted, peers) for side in (sent, received)]
    inside = np.maximum(np.bincount(population.node_R)[population.node_R] - 1, 1)
    peer_R = np.maximum(ports[0].up_R, ports[1].up_R) / inside
    packed_R = ports[0].up_R + ports[0].out_R + self_R
    return HopLoad(name, population.node_R, ports[0], ports[1], self_R, peer_R, packed_R, per_row)
