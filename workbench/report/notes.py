"""What a reader must know about single cells, why they were not run and their flags, in words and numbered."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

FLAG_WORDS = {
    "above_peak": "above the device's physical peak: something is wrong with this figure",
    "above_link": "more bytes a second than the links carry: something is wrong with this figure",
    "whole_model_does_not_fit": "the whole model does not fit in memory at this batch and context",
    "comm_sms_not_priced": "comm_sms is not priced",
    "network_priced": "the network is priced, not measured",
    "slowest_rank_not_measured": "the slowest rank is not among the measured ones",
    "ranks": "measured on rank {} of the group alone",
    "trace_tokens": "the trace has {} tokens, fewer than asked for, and is repeated",
    "trace_steps": "the trace has {} steps, fewer than asked for, and is repeated",
    "placed_on_judged_steps": "the trace has no other steps, so experts were placed by the loads they are judged on",
    "transferred_from": "no kernel was timed on this GPU: the figure is that of {} by the peaks of both",
    "links_of": "no link of this part was timed: its messages are those of {} by the rates of both",
    "unvalidated_links": "no measurement of this part's links has checked its messages",
    "nccl_between_nodes": "no table has this exchange on several nodes: it is priced by parts, and three times checked",
    "band_of_messages": "the band is that of the messages; what was measured has its own interval",
    "unvalidated_hardware": "no measurement of this GPU, or of one like it, has checked this figure",
    "rebalance_us": "to place a layer's experts anew by the loads of these steps would take {} us of moving weights",
    "limit": "prompts a second are limited by {}",
    "kv_transfer_us": "the cache of a prompt travels {} us between the pools",
    "prefill_strategy": "prompts are too many tokens for low_latency and go by {}",
    "virtual_nodes": "nodes are virtual: their ranks share one host",
}
ASIDES = {
    "stages_scaled": "stages were timed one by one and scaled down to the latency of the graph that holds them",
    "sampled_tokens": "routing was drawn for part of the tokens, and scaled up",
    "sampled_layers": "routing was drawn for the first layers, which stand for the others",
    "sampled_steps": "routing was drawn for the first steps, which stand for the others",
    "loads_bent_by_groups": "the router leaves out groups of experts, which bends the loads that the skew names",
    "eplb": "eplb placed the experts in its {} way",
    "trained_steps": "the router was balanced over {} steps before the one that is judged",
    "band_of_experts_and_messages": "the band is that of the expert stages and the messages; other stages have none",
    "messages": "messages are priced by links {}",
    "dense_roofline": "attention, dense parts and the vocabulary are at the speed of light, the least they can take",
    "aggregated": "prompts are computed between decode steps on the same GPUs",
    "disaggregated": "two pools: throughput is over the GPUs of both, latency that of the decode pool",
    "overlap_hidden_us": "messages travel beside computation, which takes that much off the latency",
    "conversion_ms": "the weights were converted for this kernel beforehand",
}
"""Flags that need no mark at each row."""
GRAVE = ("above_peak", "above_link", "whole_model_does_not_fit")
"""Flags that belong into a summary."""


@dataclass(frozen=True)
class Notes:
    """``marks``: for each row the numbers of its notes, as ``(1,3)``; ``general``: sentences over all or many rows."""

    marks: tuple[str, ...]
    numbered: tuple[str, ...]
    general: tuple[str, ...]


def flag_names(flags: object) -> list[str]:
    """The flags of a record, without their values."""
    return [flag.partition("=")[0] for flag in _split(flags)]


def flag_texts(flags: object) -> list[str]:
    """A record's ``flags`` in words; one that is not known stays as it is."""
    pairs = [(flag, *flag.partition("=")) for flag in _split(flags)]
    return [FLAG_WORDS.get(name, ASIDES.get(name, flag)).format(value) for flag, name, _, value in pairs]


def cell_notes(cells: pd.DataFrame) -> Notes:
    """Reasons and flags of the cells."""
    reasons = ["" if pd.isna(reason) else str(reason) for reason in cells["reason"]]
    rows = [
        [
            *([f"{status}: {reason}"] if reason else []),
            *(text for text in flag_texts(flags) if text not in _ASIDE_TEXTS),
        ]
        for status, reason, flags in zip(cells["status"], reasons, cells["flags"], strict=True)
    ]
    notes = number(rows)
    aside = [text for flags in cells["flags"] for text in dict.fromkeys(flag_texts(flags)) if text in _ASIDE_TEXTS]
    counts = {text: aside.count(text) for text in dict.fromkeys(aside)}
    said = tuple(f"{_rows(count, len(cells))}: {text}" for text, count in counts.items())
    return replace(notes, general=notes.general + said)


def number(rows: Sequence[Sequence[str]]) -> Notes:
    """Number the distinct notes in order of appearance; what every row of several says needs no number."""
    shared = (
        [note for note in dict.fromkeys(rows[0]) if len(rows) > 1 and all(note in row for row in rows)] if rows else []
    )
    single = dict.fromkeys(note for row in rows for note in row if note not in shared)
    numbers = {note: n for n, note in enumerate(single, 1)}
    marks = [",".join(str(numbers[note]) for note in dict.fromkeys(row) if note in numbers) for row in rows]
    general = tuple(f"{_rows(len(rows), len(rows))}: {note}" for note in shared)
    return Notes(tuple(f"({mark})" if mark else "" for mark in marks), tuple(single), general)


def _rows(count: int, total: int) -> str:
    return "every row" if count == total else f"{count} of {total} rows"


def _split(flags: object) -> list[str]:
    return [flag for flag in flags.split(",") if flag] if isinstance(flags, str) else []


_ASIDE_TEXTS = frozenset(ASIDES.values())
