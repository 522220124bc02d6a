"""The best of a space: all of it where it is small, else an ascent from several starts. Says which, and how many.

The ascent takes every start of nodes and tensor parallelism, changes one field at a time to its best value until none
helps, and then two at a time around the best, so it may miss an optimum that needs three changes at once. Candidates
are priced with the routing of one MoE layer; the best few are priced again with that of several before one is named.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, product

import numpy as np

from workbench.analysis.pareto import pareto_front
from workbench.search.evaluate import OK, REFUSED, Candidate, Pricer
from workbench.search.space import REDUNDANT, Choice, Space, one_more_slot, space_of, wants_one_more
from workbench.simulate.model import MAX_PRICED_LAYERS
from workbench.spec.block import Reader
from workbench.spec.raw import Raw, lay
from workbench.spec.scenario import Cell, Goal
from workbench.spec.scenario_file import ScenarioFile
from workbench.spec.standalone import read_cell

EXHAUSTIVE, BUDGET, FINALISTS = 500, 500, 5
STARTS = ("cluster.nodes", "parallel.tp", "serving.prefill.replicas", "serving.decode.replicas")


@dataclass(frozen=True)
class Found:
    """What a search of one group's point found. ``candidates`` are all that were tried, the best first; ``front`` those
    that none beats in both throughput and speed (or, for layers, in throughput and memory)."""

    group: str
    goal: Goal
    space: Space
    method: str
    seconds: float
    candidates: tuple[Candidate, ...]
    front: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate | None:
        first = self.candidates[0]
        return first if first.status == OK else None


@dataclass
class _Trial:
    """Candidates of one space by choice, each priced once, until the budget is spent."""

    space: Space
    pricer: Pricer
    reader: Reader
    tried: dict[Choice, Candidate] = field(default_factory=dict)

    @property
    def spent(self) -> bool:
        return len(self.tried) >= BUDGET

    def at(self, choice: Choice) -> Candidate:
        if choice not in self.tried:
            self.tried[choice] = self._evaluate(choice)
        return self.tried[choice]

    def best(self) -> Choice:
        return max(self.tried, key=lambda choice: self.tried[choice].score)

    def _evaluate(self, choice: Choice) -> Candidate:
        settings = self.space.settings(choice)
        cell, reason = self._cell(self.space.block(choice))
        return Candidate(settings, REFUSED, reason) if cell is None else self.pricer.price(cell, settings)

    def _cell(self, raw: Raw) -> tuple[Cell | None, str]:
        more = wants_one_more(raw)
        cell, faults = read_cell(lay(raw, REDUNDANT, "auto") if more else raw, reader=self.reader)
        if more and cell is not None and cell.model is not None:
            decided = one_more_slot(raw, num_experts=cell.model.num_experts, ep=cell.ep)
            cell, faults = read_cell(decided, reader=self.reader)
        return cell, "; ".join(f"{'.'.join(map(str, fault.path))}: {fault.message}" for fault in faults)


def search_file(file: ScenarioFile) -> list[Found]:
    """A search for every point of the scenario that has a goal. Raises ValueError where none has one, and where the
    goal asks for what its scope has not."""
    reader, found = Reader(file.folder), []
    for group in file.groups:
        for raw, _ in group.points():
            if raw.get("goal") is not None:
                found.append(_search_point(raw, reader=reader, group=group.name))
    if not found:
        raise ValueError("plan --search needs a goal in the scenario, such as goal: {maximise: tokens_per_s_per_gpu}")
    return found


def _search_point(raw: Raw, *, reader: Reader, group: str) -> Found:
    started = time.perf_counter()
    read, faults = reader.read(raw)
    if read is None or read.block.goal is None:
        raise ValueError("; ".join(f"{'.'.join(map(str, fault.path))}: {fault.message}" for fault in faults))
    goal, scope = read.block.goal, read.block.scope.kind
    whole = scope == "model"
    if scope not in ("layer", "layer_no_router", "train_step", "model"):
        raise ValueError(f"goal: scope {scope} has no configuration to search; layer, train_step and model have")
    if not whole and (goal.ttft_ms or goal.tpot_ms or goal.maximise == "tokens_per_s_per_user"):
        raise ValueError(f"goal: ttft_ms, tpot_ms and tokens_per_s_per_user are of scope model, not {scope}")
    trial = _Trial(space_of(raw, read.block, goal), Pricer(goal), reader)
    exhaustive = trial.space.size <= EXHAUSTIVE
    for choice in trial.space.choices() if exhaustive else ():
        trial.at(choice)
    if not exhaustive:
        _ascend(trial)
    candidates = _finals(trial, goal, whole=whole)
    method = "exhaustive" if exhaustive else "ascent"
    return Found(
        group, goal, trial.space, method, time.perf_counter() - started, candidates, _front(candidates, whole=whole)
    )  # fmt: skip


def _ascend(trial: _Trial) -> None:
    for start in _starts(trial.space):
        _climb(trial, start, size=1)
    _climb(trial, trial.best(), size=2)


def _climb(trial: _Trial, choice: Choice, *, size: int) -> None:
    """Moves to the best neighbour that differs in ``size`` fields at most until there is none better."""
    trial.at(choice)
    while not trial.spent:
        before = trial.at(choice).score
        for axes in combinations(range(len(choice)), size):
            around = _around(trial.space, choice, axes)
            choice = max(_affordable(trial, around), key=lambda one: trial.at(one).score, default=choice)
        if trial.at(choice).score <= before:
            return


def _around(space: Space, choice: Choice, axes: tuple[int, ...]) -> Iterator[Choice]:
    for steps in product(*(range(len(space.axes[axis].values)) for axis in axes)):
        moved = list(choice)
        for axis, step in zip(axes, steps, strict=True):
            moved[axis] = step
        yield tuple(moved)


def _affordable(trial: _Trial, choices: Iterable[Choice]) -> Iterator[Choice]:
    """Choices that are priced already or that the budget has room for."""
    for choice in choices:
        if choice in trial.tried or not trial.spent:
            trial.at(choice)
            yield choice


def _starts(space: Space) -> list[Choice]:
    """Every combination of the starting fields, the others in the middle of their lists."""
    lists = [
        range(len(axis.values)) if axis.path in STARTS else (len(axis.values) // 2,) if _ordered(axis.values) else (0,)
        for axis in space.axes
    ]
    return list(product(*lists))


def _ordered(values: tuple[object, ...]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def _finals(trial: _Trial, goal: Goal, *, whole: bool) -> tuple[Candidate, ...]:
    """All candidates, the best first; the first few priced again with the routing of several layers."""
    ranked = sorted(trial.tried.values(), key=lambda candidate: candidate.score, reverse=True)
    if whole:
        careful = Pricer(goal, max_layers=MAX_PRICED_LAYERS)
        finalists = [one for one in ranked[:FINALISTS] if one.figures is not None and one.cell is not None]
        again = [careful.price(one.cell, one.settings) for one in finalists if one.cell is not None]
        ranked = sorted([*again, *ranked[len(finalists) :]], key=lambda one: one.score, reverse=True)
    return tuple(ranked)


def _front(candidates: tuple[Candidate, ...], *, whole: bool) -> tuple[Candidate, ...]:
    """Of candidates with the very same figures the first alone."""
    by_figures: dict[tuple[float, float], Candidate] = {}
    for one in candidates:
        if one.status == OK and one.figures is not None:
            user = one.figures.tokens_per_s_per_user if whole else None
            other = -float(one.figures.memory_bytes) if user is None else user
            by_figures.setdefault((one.figures.tokens_per_s_per_gpu, other), one)
    if not by_figures:
        return ()
    kept = pareto_front(np.array(list(by_figures)))
    return tuple(one for one, on in zip(by_figures.values(), kept, strict=True) if on)
