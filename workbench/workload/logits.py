"""Logits of one rank's tokens, written by the skew. Shapes: T tokens, E experts.

Most kinds have one popularity for all tokens (``skew``); those of ``WRITERS`` tell tokens apart.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from workbench.spec.router import Router
from workbench.spec.workload import Balanced, Skew, Topics, Trace
from workbench.workload.counter import COPIES, SEQUENCES, TOKENS, TOPICS, gumbel, normal, raw_words
from workbench.workload.deal import dealt_logits
from workbench.workload.drift import standard
from workbench.workload.recording import Recording, load_recording, require_fit
from workbench.workload.skew import Crowd, popularity


@dataclass(frozen=True)
class Batch:
    """Tokens of one rank that are routed: ``rows`` of them, behind ``first`` routed ones of the ranks before it.

    ``start`` is the number of all tokens of the ranks before it.
    """

    router: Router
    rank: int
    rows: int
    first: int
    start: int


def token_logits(skew: Skew, crowd: Crowd, batch: Batch) -> np.ndarray:
    """float32 [rows, E]."""
    return WRITERS.get(skew.kind, drawn_logits)(skew, crowd, batch)


def drawn_logits(skew: Skew, crowd: Crowd, batch: Batch) -> np.ndarray:
    """Log popularity plus Gumbel noise."""
    noise = _noise(crowd, batch)
    noise += popularity(skew, crowd)
    return noise


def _noise(crowd: Crowd, batch: Batch) -> np.ndarray:
    place = (batch.rank, crowd.layer, crowd.step)
    return gumbel(batch.rows, crowd.num_experts, seed=crowd.seed, purpose=TOKENS, place=place)


def _balanced(skew: Balanced, crowd: Crowd, batch: Batch) -> np.ndarray:
    return dealt_logits(crowd, router=batch.router, rank=batch.rank, rows=batch.rows, first=batch.first)


def _topics(skew: Topics, crowd: Crowd, batch: Batch) -> np.ndarray:
    """The popularity of each token's topic plus noise, of which a share is the neighbour's: still Gumbel everywhere."""
    topics = token_topics(skew, crowd, rank=batch.rank, rows=batch.rows)
    noise = _noise(crowd, batch)
    if skew.correlation > 0:
        place = (batch.rank, crowd.layer, crowd.step)
        kept = copied_rows(skew, batch.rows, crowd.num_experts, seed=crowd.seed, place=place)
        noise = np.take_along_axis(noise, kept, axis=0)
    return noise + topic_popularity(skew, crowd)[topics]


def token_topics(skew: Topics, crowd: Crowd, *, rank: int, rows: int) -> np.ndarray:
    """int64 [rows]: the topic of each token, the same in every layer."""
    count = -(-rows // skew.sequence_tokens)
    words = raw_words(count, seed=crowd.seed, purpose=SEQUENCES, place=(rank, crowd.step))
    return np.repeat((words % np.uint64(skew.num_topics)).astype(np.int64), skew.sequence_tokens)[:rows]


def topic_popularity(skew: Topics, crowd: Crowd) -> np.ndarray:
    """Log popularity of every topic, float32 [topics, E], each scaled to add up to 1."""
    drawn = [
        standard(normal(crowd.num_experts, seed=crowd.seed, purpose=TOPICS, place=(crowd.layer, topic)))
        for topic in range(skew.num_topics)
    ]
    logs = skew.strength * np.stack(drawn)
    return (logs - np.log(np.exp(logs).sum(axis=1, keepdims=True))).astype(np.float32)


def copied_rows(skew: Topics, rows: int, columns: int, *, seed: int, place: tuple[int, ...]) -> np.ndarray:
    """int64 [rows, columns]: the token of the sequence whose noise each one has.

    With the chance ``correlation`` it is that of the token before, else its own; so two tokens d apart share it with
    the chance correlation^d, which is then their correlation.
    """
    words = raw_words(-(-rows * columns // 2), seed=seed, purpose=COPIES, place=place)
    halves = words.astype("<u8", copy=False).view("<u4")[: rows * columns].reshape(rows, columns)
    own = np.arange(rows)[:, None]
    fresh = (halves >= np.uint64(round(skew.correlation * 2**32))) | (own % skew.sequence_tokens == 0)
    return np.maximum.accumulate(np.where(fresh, own, 0), axis=0)


def _trace(skew: Trace, crowd: Crowd, batch: Batch) -> np.ndarray:
    """Recorded logits; drawn ones for recorded counts, and none (0) where experts were recorded themselves."""
    if skew.form == "counts":
        return drawn_logits(skew, crowd, batch)
    if skew.form == "ids":
        return np.zeros((batch.rows, crowd.num_experts), np.float32)
    recording, rows = _recorded_rows(skew, crowd, batch)
    return recording.batch(crowd.layer, crowd.step)[rows]


def recorded_routing(skew: Trace, crowd: Crowd, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Experts int32 [rows, K] and weights float32 of a trace of the form ids; equal weights where none were kept."""
    recording, rows = _recorded_rows(skew, crowd, batch)
    ids, weights = recording.batch(crowd.layer, crowd.step)[rows], recording.weights(crowd.layer, crowd.step)
    chosen = (ids >= 0).astype(np.float32)
    if weights is not None:
        return ids, weights[rows] * chosen
    return ids, chosen / np.maximum(chosen.sum(axis=1, keepdims=True), 1)


def _recorded_rows(skew: Trace, crowd: Crowd, batch: Batch) -> tuple[Recording, np.ndarray]:
    recording = load_recording(skew, crowd.trace_digest)
    require_fit(recording, num_experts=crowd.num_experts, top_k=crowd.top_k)
    rows = recording.rows(crowd.step, start=batch.start, count=batch.rows, num_tokens=crowd.num_tokens)
    return recording, rows


WRITERS: dict[str, Callable[[Skew, Crowd, Batch], np.ndarray]] = {
    "balanced": _balanced,
    "topics": _topics,
    "trace": _trace,
}
