"""What a hop of a plan puts on each rank's links, in rows; times bytes a row it is bytes.

R ranks, S rounds. Rows and messages are counted without those to itself. ``up`` is the scale-up domain; between
domains ``rail`` joins ranks at the same place of their nodes and ``cross`` all others.
"""

from dataclasses import dataclass, replace

import numpy as np

from workbench.comm.hop import Hop, Round
from workbench.simulate.sampling import full_counts


@dataclass(frozen=True)
class PortLoad:
    """One direction of every rank's links [R]; ``out_peers_R`` counts the ranks of other nodes at the other end."""

    up_R: np.ndarray
    rail_R: np.ndarray
    cross_R: np.ndarray
    up_messages_R: np.ndarray
    rail_messages_R: np.ndarray
    cross_messages_R: np.ndarray
    out_peers_R: np.ndarray

    @property
    def out_R(self) -> np.ndarray:
        return self.rail_R + self.cross_R

    @property
    def messages_R(self) -> np.ndarray:
        return self.up_messages_R + self.rail_messages_R + self.cross_messages_R


@dataclass(frozen=True)
class RoundLoads:
    """The fullest rank of each round, rows [S], of both directions; ``node_S`` the fullest node's rows to others."""

    up_S: np.ndarray
    rail_S: np.ndarray
    cross_S: np.ndarray
    node_S: np.ndarray


@dataclass(frozen=True)
class HopLoad:
    """``self_R`` stays on its rank; ``peer_R`` is the most rows of any one scale-up pair with that rank; ``packed_R``
    the rows that the rank hands over. ``per_row``: every row is a message; ``announced``: no counts go ahead.
    """

    name: str
    node_R: np.ndarray
    sent: PortLoad
    received: PortLoad
    self_R: np.ndarray
    peer_R: np.ndarray
    packed_R: np.ndarray
    per_row: bool = False
    announced: bool = False
    rounds: RoundLoads | None = None

    @property
    def up_sent_R(self) -> np.ndarray:
        return self.sent.up_R

    @property
    def up_received_R(self) -> np.ndarray:
        return self.received.up_R

    @property
    def out_sent_R(self) -> np.ndarray:
        return self.sent.out_R

    @property
    def out_received_R(self) -> np.ndarray:
        return self.received.out_R

    @property
    def sent_R(self) -> np.ndarray:
        """Rows of each rank's send list, those to itself included."""
        return self.sent.up_R + self.sent.out_R + self.self_R

    @property
    def received_R(self) -> np.ndarray:
        return self.received.up_R + self.received.out_R + self.self_R

    @property
    def reverse(self) -> "HopLoad":
        """The same rows sent back: what combine does to dispatch."""
        return replace(self, sent=self.received, received=self.sent, packed_R=self.received_R)


def plan_loads(hops: tuple[Hop, ...], *, node_R: np.ndarray, scale: float = 1.0) -> tuple[HopLoad, ...]:
    """The loads of a plan's hops."""
    return tuple(load_of(hop, node_R=node_R, scale=scale) for hop in hops)


def load_of(hop: Hop, *, node_R: np.ndarray, scale: float = 1.0) -> HopLoad:
    """The load of one hop, however it is carried; ``scale`` undoes token sampling."""
    per_row = hop.carrier == "per_row"
    load = hop_load(hop.name, hop.send_counts, hop.messages(), node_R=node_R, scale=scale, per_row=per_row)
    packed_R = load.sent_R
    if hop.carrier == "all_gather":
        packed_R = full_counts(hop.send_counts.max(axis=1), scale=scale)
    rounds = round_loads(hop.rounds, node_R=node_R, scale=scale) if hop.rounds else None
    return replace(load, packed_R=packed_R, announced=hop.announced, rounds=rounds)


def hop_load(
    name: str, rows_RR: np.ndarray, messages_RR: np.ndarray, *, node_R: np.ndarray, scale: float = 1.0,
    per_row: bool = False,
) -> HopLoad:  # fmt: skip
    """Sums of a hop's [source, destination] rows by rank, direction and link.

    Sampled tokens leave pairs empty that the full batch would use, so messages scale too: up to R - 1, or as rows do
    where every row is one.
    """
    place_R = places(node_R)
    same_RR = node_R[:, None] == node_R[None, :]
    rail_RR = ~same_RR & (place_R[:, None] == place_R[None, :])
    cross_RR = ~same_RR & ~rail_RR
    self_R = np.diagonal(rows_RR)
    same_RR[np.diag_indices_from(same_RR)] = False
    messages_RR = np.where(np.eye(len(node_R), dtype=bool), 0, messages_RR)
    masks = (same_RR, rail_RR, cross_RR)
    rows = [np.where(mask, rows_RR, 0) for mask in masks]
    messages = [np.where(mask, messages_RR, 0) for mask in masks]
    most = np.inf if per_row else len(node_R) - 1.0
    out_RR = (rows[1] > 0) | (rows[2] > 0)
    sent, received = (_port(rows, messages, out_RR, axis=axis, scale=scale, most=most) for axis in (1, 0))
    up_RR = rows[0]
    return HopLoad(
        name,
        np.asarray(node_R),
        sent,
        received,
        self_R=full_counts(self_R, scale=scale),
        peer_R=np.maximum(up_RR.max(axis=1), up_RR.max(axis=0)) * scale,
        packed_R=sent.up_R + sent.out_R + full_counts(self_R, scale=scale),
        per_row=per_row,
    )


def even_load(name: str, node_R: np.ndarray) -> HopLoad:
    """The load of one row from every rank to every other."""
    place_R = places(node_R)
    up_R = np.bincount(node_R)[node_R] - 1.0
    rail_R = np.bincount(place_R)[place_R] - 1.0
    cross_R = node_R.size - 1.0 - up_R - rail_R
    port = PortLoad(up_R, rail_R, cross_R, up_R, rail_R, cross_R, (rail_R + cross_R).astype(np.int64))
    return HopLoad(name, node_R, port, port, 0 * up_R, np.minimum(up_R, 1.0), up_R + port.out_R)


def _port(
    rows: list[np.ndarray], messages: list[np.ndarray], out_RR: np.ndarray, *, axis: int, scale: float, most: float
) -> PortLoad:
    up_R, rail_R, cross_R = (full_counts(part.sum(axis=axis), scale=scale) for part in rows)
    counted = [part.sum(axis=axis) * scale for part in messages]
    total_R = np.maximum(sum(counted), 1e-300)
    up_m, rail_m, cross_m = (part * np.minimum(1.0, most / total_R) for part in counted)
    return PortLoad(up_R, rail_R, cross_R, up_m, rail_m, cross_m, out_RR.sum(axis=axis))


def places(node_R: np.ndarray) -> np.ndarray:
    """Each rank's place among the ranks of its node, int64 [R]."""
    node_R = np.asarray(node_R)
    first = np.searchsorted(node_R, node_R) if (np.diff(node_R) >= 0).all() else None
    if first is not None:
        return np.arange(node_R.size) - first
    place_R = np.zeros(node_R.size, np.int64)
    for node in np.unique(node_R):
        place_R[node_R == node] = np.arange((node_R == node).sum())
    return place_R


def round_loads(rounds: tuple[Round, ...], *, node_R: np.ndarray, scale: float) -> RoundLoads:
    """The fullest rank and node of each round. Rounds in which nothing moves are there too, all zero."""
    place_R, ranks, nodes = places(node_R), node_R.size, int(node_R.max()) + 1
    columns = np.zeros((4, len(rounds)))
    rows_SR, target_SR = np.stack([step.rows for step in rounds]), np.stack([step.destination for step in rounds])
    sending_SR, full_SR = target_SR >= 0, np.zeros(rows_SR.shape)
    # All rounds together: a single one of few rows does not tell chance from skew.
    full_SR[sending_SR] = full_counts(rows_SR[sending_SR], scale=scale)
    for index in range(len(rounds)):
        source = np.flatnonzero(sending_SR[index])
        target, rows = target_SR[index, source], full_SR[index, source]
        same = node_R[source] == node_R[target]
        rail = ~same & (place_R[source] == place_R[target])
        for column, chosen in enumerate((same, rail, ~same & ~rail)):
            incoming = np.bincount(target[chosen], rows[chosen], minlength=ranks)
            columns[column, index] = max(rows[chosen].max(initial=0.0), incoming.max(initial=0.0))
        out = ~same
        leaving = np.bincount(node_R[source[out]], rows[out], minlength=nodes)
        entering = np.bincount(node_R[target[out]], rows[out], minlength=nodes)
        columns[3, index] = max(leaving.max(initial=0.0), entering.max(initial=0.0))
    return RoundLoads(*columns)
