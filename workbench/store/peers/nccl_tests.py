"""What nccl-tests (and rccl-tests) print: a line a message size, out-of-place and in-place beside one another.

Columns are found by the header's words, since versions differ in them (with or without root; error or #wrong). The
tool's ``size`` is what one rank sends in all, as ``bytes_per_rank`` is here.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.spec.record import Outcome
from workbench.store.peers.row import Figures, Told, number, outcome, whole

METHOD = "nccl-tests"
COLLECTIVES = {"alltoall": "all_to_all", "all_reduce": "all_reduce", "all_gather": "all_gather",
               "reduce_scatter": "reduce_scatter", "sendrecv": "send_receive", "broadcast": "broadcast",
               "reduce": "reduce", "gather": "gather", "scatter": "scatter", "hypercube": "hypercube"}  # fmt: skip
_HEADER = re.compile(r"^#\s*size\s+count\b", re.MULTILINE)
_TEST = re.compile(r"\b([a-z_]+?)_perf\b")
_RANK = re.compile(r"#\s+Rank\s+(\d+).*?\bon\s+(\S+)\s+device\s+\S+\s+(?:\[[^\]]*\]\s*)?(.*)")
_VERSION = re.compile(r"nccl version\s+([\d.]+)", re.IGNORECASE)
LEAD = ("size", "count", "type", "redop", "root")


@dataclass(frozen=True)
class _Job:
    """What a file says once for all its lines."""

    test: str
    ranks: int | None
    nodes: int | None
    hardware: str | None
    version: str | None


def fits(text: str) -> bool:
    return _HEADER.search(text) is not None and "algbw" in text and "busbw" in text


def read(text: str, path: Path, told: Told) -> list[Outcome]:
    """A cell for each line and place of the buffers, in microseconds and GB/s (10^9).

    Raises ValueError for a line with other columns than its header and for a file without a line.
    """
    job = _job(text, path)
    found = [
        outcome(_conditions(job, lead, place), _figures(values), told=told, more=_more(lead, place))
        for lead, place, values in _lines(text, path)
    ]
    if not found:
        raise ValueError(f"{path}: has the header of nccl-tests but no line with figures")
    return found


def _lines(text: str, path: Path) -> Iterator[tuple[dict[str, str], str, dict[str, str]]]:
    """The leading fields of a line, out-of-place or in-place, and the figures of that place."""
    header: list[str] = []
    for at, line in enumerate(text.splitlines(), start=1):
        if _HEADER.match(line):
            header = line.lstrip("# ").split()
            continue
        fields = line.split()
        if not header or not fields or not fields[0].isdigit():
            continue
        if len(fields) != len(header):
            raise ValueError(f"{path}: line {at} has {len(fields)} fields, its header {len(header)}: it was cut")
        num_lead = next(place for place, name in enumerate(header) if name not in LEAD)
        lead = dict(zip(header[:num_lead], fields[:num_lead], strict=True))
        half = (len(header) - num_lead) // 2
        for place, start in (("out-of-place", num_lead), ("in-place", num_lead + half)):
            yield lead, place, dict(zip(header[start : start + half], fields[start : start + half], strict=True))


def _job(text: str, path: Path) -> _Job:
    ranks = [match.groups() for match in _RANK.finditer(text)]
    parts = {name.strip() for _, _, name in ranks}
    return _Job(
        test=_test(text, path.name),
        ranks=len({rank for rank, _, _ in ranks}) or None,
        nodes=len({host for _, host, _ in ranks}) or None,
        hardware=parts.pop() if len(parts) == 1 else None,
        version=found[1] if (found := _VERSION.search(text)) else None,
    )


def _test(*texts: str) -> str:
    """The collective, by the program's name in the text or in the file's name."""
    named: Sequence[str] = [name for text in texts for name in _TEST.findall(text)]
    return next((COLLECTIVES[name] for name in named if name in COLLECTIVES), "collective")


def _conditions(job: _Job, lead: dict[str, str], place: str) -> dict[str, Any]:
    return {
        "scope": job.test,
        "group": place,
        "method": METHOD,
        "kernel": "nccl",
        "kernel_version": job.version,
        "hardware": job.hardware,
        "num_gpus": job.ranks,
        "nodes": job.nodes,
        "bytes_per_rank": whole(lead["size"]),
        "dispatch_dtype": lead.get("type"),
    }


def _more(lead: dict[str, str], place: str) -> dict[str, Any]:
    return {"reduction": lead.get("redop"), "in_place": place == "in-place"}


def _figures(values: dict[str, str]) -> Figures:
    wrong = number(values.get("#wrong"))
    figures = {
        "latency_us": number(values.get("time")),
        "algbw_gb_per_s": number(values.get("algbw")),
        "busbw_gb_per_s": number(values.get("busbw")),
    }
    if wrong:
        return Figures(record=figures, status="error", reason=f"{wrong:g} values were wrong")
    if figures["latency_us"] is None:
        return Figures(record=figures, status="unsupported", reason="the file has no time for it")
    return Figures(record=figures)
