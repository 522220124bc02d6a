"""Tokens that attention reads and keeps: context of a step by phase, layers with a window, the key-value cache.

An attention group is the ``attn_tp`` GPUs that share the heads of the same tokens: those of attn_tp / tp ranks.
"""

from dataclasses import dataclass
from math import ceil

from workbench.simulate.weights import kv_bytes_per_token
from workbench.spec.model import Attention, Model
from workbench.spec.scenario import Cell


@dataclass(frozen=True)
class Context:
    """What one attention group computes in a step: ``tokens`` of ``sequences``, each token seeing at most ``longest``
    tokens; ``chunks`` steps make up a prompt that is longer than a step."""

    tokens: float
    sequences: float
    longest: int
    chunks: int = 1

    def pairs(self, window: int | None, *, decode: bool) -> float:
        """(query, key) pairs of one layer: every token with all before it, or with the last ``window``.

        Prompts are causal; a chunk of a prompt counts as the mean of all its chunks.
        """
        seen = self.longest if window is None else min(window, self.longest)
        if decode:
            return self.tokens * seen
        triangle = seen * (seen + 1) / 2 + (self.longest - seen) * seen
        return triangle * self.tokens / self.longest


def group_tokens(cell: Cell) -> float:
    """Tokens of one attention group, from those of a rank."""
    return cell.workload.tokens_per_rank * cell.parallel.attn_tp / cell.parallel.tp


def prompt_tokens(cell: Cell) -> int:
    """Length of a prompt: ``isl``, or without it ``context_tokens`` as far as a step has tokens."""
    workload = cell.workload
    return workload.isl or max(1, min(workload.context_tokens, ceil(group_tokens(cell))))


def context_of(cell: Cell) -> Context:
    """The step of a cell of any phase. In decode with ``isl`` the mean of a sequence's life: isl + osl / 2."""
    workload, tokens = cell.workload, group_tokens(cell)
    if workload.phase == "decode":
        mean = workload.isl + ceil((workload.osl or 0) / 2) if workload.isl else workload.context_tokens
        return Context(tokens, tokens, mean)
    prompt = prompt_tokens(cell)
    return Context(tokens, tokens / prompt, prompt, max(1, ceil(prompt / tokens)) if tokens else 1)


def attention_layers(model: Model) -> tuple[tuple[int, int | None], ...]:
    """Layers with their window, None for those that see all: ``((18, None), (18, 128))``."""
    attention = model.attention
    windowed = attention.sliding_layers if attention is not None and attention.sliding_window else 0
    groups = ((model.total_layers - windowed, None), (windowed, attention.sliding_window if windowed else None))
    return tuple((layers, window) for layers, window in groups if layers)


def kv_cache_bytes(cell: Cell, model: Model, attention: Attention) -> int:
    """Key-value cache of one GPU, bf16: of its sequences at their end in decode, else of the tokens in flight.

    A layer with a window keeps that many tokens of each sequence; a GPU has the layers of its pipeline stage, and
    ``micro_batches`` of them are under way.
    """
    workload, tokens = cell.workload, group_tokens(cell)
    if workload.phase == "decode":
        sequences, length = tokens, (workload.isl + (workload.osl or 0)) if workload.isl else workload.context_tokens
    else:
        length = prompt_tokens(cell)
        sequences = max(tokens, workload.isl or 0) / length
    per_token = kv_bytes_per_token(attention, attn_tp=cell.parallel.attn_tp)
    kept = sum(
        layers * (length if window is None else min(window, length)) for layers, window in attention_layers(model)
    )
    share = ceil(model.total_layers / cell.parallel.pp) / model.total_layers
    return round(sequences * workload.micro_batches * kept * per_token * share)
