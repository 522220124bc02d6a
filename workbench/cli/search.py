"""``moe-workbench plan --search``: the answer as tables for people and as strict JSON."""

import shlex
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.cli.output import Format, console, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from workbench.search.evaluate import Candidate, Figures
    from workbench.search.search import Found
    from workbench.spec.scenario_file import ScenarioFile

MOST_FRONT, MOST_LOSERS, LONGEST = 12, 16, 13
GIB = 2**30
SHORT = {
    "cluster.nodes": "nodes", "parallel.tp": "tp", "parallel.ep": "ep", "parallel.attn_tp": "attn_tp",
    "dispatch.strategy": "dispatch", "dispatch.overlap": "overlap", "dispatch.dispatch_dtype": "wire",
    "balance.placement": "placement", "workload.tokens_per_rank": "tokens/rank",
    "serving.prefill.replicas": "prefill x", "serving.decode.replicas": "decode x",
    "serving.decode.tokens_per_rank": "decode tokens", "serving.prefill.tokens_per_rank": "prefill tokens",
}  # fmt: skip
WORDS = {"auto": "", "one_more": "+1 slot"}
"""Redundancies by what they mean for a rank."""
METHODS = {
    "exhaustive": "every combination was tried",
    "ascent": "one field at a time from several starts, then two at a time around the best: a better combination of "
    "three changes at once may be missed",
}
CAVEATS = (
    "bands are those of experts and messages, held out by row; attention and dense parts are at the speed of light",
    "precisions differ in numerical error, which the search does not weigh",
)


def run_search(file: "ScenarioFile", scenario: str, *, form: Format) -> int:
    """Search every point with a goal; the exit status: 1 where none of them can be met."""
    from workbench.search.search import search_file

    found = search_file(file)
    if form is Format.JSON:
        print_json({"scenario": file.name, "searches": [as_dict(one) for one in found]})
    else:
        for one in found:
            _print(one, scenario, alone=len(file.groups) == 1)
    return 0 if any(one.best for one in found) else 1


def as_dict(found: "Found") -> dict[str, Any]:
    """The whole search: goal, method, best, front and every loser with its reason."""
    from workbench.search.reasons import why_lost

    best = found.best
    losers = [
        _row(one) | {"why": why_lost(one, best, maximise=found.goal.maximise, front=found.front)}
        for one in found.candidates
        if one is not best
    ]
    return {
        "group": found.group,
        "goal": found.goal.model_dump(mode="json", exclude={"space"}),
        "space": {axis.path: list(axis.values) for axis in found.space.axes},
        "space_size": found.space.size,
        "method": found.method,
        "method_says": METHODS[found.method],
        "tried": len(found.candidates),
        "seconds": round(found.seconds, 2),
        "caveats": list(CAVEATS),
        "best": _row(best) if best else None,
        "front": [_row(one) for one in found.front],
        "losers": losers,
    }


def _row(candidate: "Candidate") -> dict[str, Any]:
    cell = candidate.cell
    row: dict[str, Any] = {
        "settings": dict(candidate.settings),
        "status": candidate.status,
        "ep": cell.ep if cell else None,
        "redundant_experts": cell.balance.placement.redundant_experts if cell else None,
        "cell_id": cell.cell_id if cell else None,
    }
    return row | (_figures(candidate, candidate.figures) if candidate.figures else {})


def _figures(candidate: "Candidate", figures: "Figures") -> dict[str, Any]:
    low, high = candidate.range
    return {
        "value": candidate.value,
        "value_low": low,
        "value_high": high,
        "tokens_per_s": figures.tokens_per_s,
        "tokens_per_s_per_gpu": figures.tokens_per_s_per_gpu,
        "tokens_per_s_per_user": figures.tokens_per_s_per_user,
        "ttft_us": figures.ttft_us,
        "tpot_us": figures.tpot_us,
        "step_us": figures.step_us,
        "gpus": figures.gpus,
        "memory_bytes": figures.memory_bytes,
        "usd_per_million_tokens": 1e6 / figures.tokens_per_usd if figures.tokens_per_usd else None,
        "method": figures.method,
        "gpu_us_per_token": dict(figures.gpu_us_per_token),
    }


def _print(found: "Found", scenario: str, *, alone: bool) -> None:
    out, best = console(), found.best
    if not out.is_terminal:
        out.width = 160
    limits = found.goal.model_dump(mode="json", exclude={"space", "maximise"}, exclude_none=True)
    said = "".join(f", {name} {value}" for name, value in limits.items())
    group = f"{found.group}: " if found.group else ""
    out.print(f"{group}maximise {found.goal.maximise}{said}", style="bold", markup=False)
    out.print(
        f"{len(found.candidates)} of {found.space.size} combinations in {found.seconds:.1f} s; {METHODS[found.method]}",
        markup=False,
    )
    if best is None:
        out.print("no combination meets the goal; the nearest ones and why:", style="yellow")
    else:
        out.print(_table("the best, and what none beats in throughput and speed together", [best, *found.front]))
    out.print(_losers(found))
    counts = Counter(one.status for one in found.candidates)
    out.print(", ".join(f"{number} {status}" for status, number in counts.items()), markup=False)
    if best is not None:
        where = "run it" if alone else f"run it, with group {found.group} in a file of its own"
        command = f"moe-workbench run {shlex.quote(scenario)} {_overrides(best)}"
        out.print(f"{where}: {command}", markup=False, soft_wrap=True)
    for text in CAVEATS:
        out.print(text, style="yellow", markup=False)
    out.print()


def _table(title: str, candidates: "list[Candidate]") -> "Table":
    """A row each; what all of them share stands below."""
    from workbench.report.terminal import plain_table

    shown = list({id(one): one for one in candidates}.values())[:MOST_FRONT]
    texts = {path: [_text(one.settings[path]) for one in shown] for path in shown[0].settings}
    shared = {path: column[0] for path, column in texts.items() if len(shown) > 1 and len(set(column)) == 1}
    said = ", ".join(f"{_head(path)} {text}" for path, text in shared.items())
    table = plain_table(title, f"in every row: {said}" if said else "")
    varying = {path: column for path, column in texts.items() if path not in shared}
    for path, column in varying.items():
        table.add_column(_head(path), overflow="fold", min_width=min(LONGEST, max(map(len, (_head(path), *column)))))
    for name in ("ep", "GPUs", "tok/s/GPU", "80% band", "TTFT", "TPOT", "GiB", "method"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, one in enumerate(shown):
        cells = [*(column[number] for column in varying.values()), *_shown(one)]
        table.add_row(*cells, style="bold green" if number == 0 else "")
    return table


def _head(path: str) -> str:
    return SHORT.get(path, path.rpartition(".")[2])


def _shown(candidate: "Candidate") -> list[str]:
    from workbench.report.units import number_text, time_text

    figures = candidate.figures
    assert figures is not None
    low, high = (figures.tokens_per_s_per_gpu / end for end in reversed(figures.band))
    band = f"{number_text(low)}-{number_text(high)}" if low != high else "none"
    rate, memory = number_text(figures.tokens_per_s_per_gpu), f"{figures.memory_bytes / GIB:.0f}"
    ep = str(candidate.cell.ep) if candidate.cell else ""
    times = time_text(figures.ttft_us), time_text(figures.tpot_us)
    method = figures.method.removesuffix("+roofline")
    return [ep, str(figures.gpus), rate, band, *times, memory, method]


def _losers(found: "Found") -> "Table":
    """The nearest losers, then those that other reasons rule out, a few of each."""
    from workbench.report.terminal import plain_table
    from workbench.search.reasons import why_lost

    table = plain_table("why others lost")
    table.add_column("what differs from the best" if found.best else "combination", overflow="fold", ratio=1)
    table.add_column("why", overflow="fold", ratio=2)
    rows, reasons = 0, Counter[str]()
    for one in found.candidates:
        if one is found.best or rows >= MOST_LOSERS:
            continue
        reasons[one.status] += 1
        if reasons[one.status] > MOST_LOSERS // 3:
            continue
        rows += 1
        why = why_lost(one, found.best, maximise=found.goal.maximise, front=found.front)
        table.add_row(_differing(one.settings, found.best), why)
    return table


def _differing(settings: Mapping[str, Any], best: "Candidate | None") -> str:
    against = best.settings if best is not None else {}
    return ", ".join(
        f"{_head(path)} {_text(value)}"
        for path, value in settings.items()
        if path not in against or against[path] != value
    )


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        rest = [WORDS.get(part, str(part)) for name, part in value.items() if name not in ("kind", "name")]
        return " ".join([str(value.get("kind") or value.get("name") or ""), *filter(None, rest)]).strip()
    return str(value)


def _overrides(best: "Candidate") -> str:
    """The settings as ``--set`` options."""
    options = {"goal": "null"}
    for path, value in best.settings.items():
        if isinstance(value, Mapping):
            for name, part in value.items():
                decided = part
                if name == "redundant_experts" and best.cell is not None:
                    decided = best.cell.balance.placement.redundant_experts
                options[f"{path}.{name}"] = str(decided)
        else:
            options[path] = str(value)
    return " ".join(f"--set {shlex.quote(f'{path}={value}')}" for path, value in options.items())
