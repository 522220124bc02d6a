"""A scenario into cells: every combination checked, resolved and given an id that stays the same over runs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from workbench.spec.base import size_text
from workbench.spec.block import Reader
from workbench.spec.errors import Problem, SpecError
from workbench.spec.found import FoundCluster
from workbench.spec.raw import leaves
from workbench.spec.resolve import resolve_cell
from workbench.spec.scenario import Cell
from workbench.spec.scenario_file import ScenarioFile

MAX_CELLS = 10_000
_MOST_PROBLEMS = 40
START_S, GANG_S, PREPARE_S, SIMULATE_S = 4.0, 5.0, 0.5, 0.03
"""Starting Ray, starting a gang of ranks, preparing and checking a measured cell, pricing one: rounded up, 2 cores."""


def count_cells(file: ScenarioFile) -> int:
    """Number of cells without building them; an upper bound where ``count_is_exact`` is false.

    Combinations that two groups share, or that ``include`` repeats, count each time and are planned once.
    """
    return sum(group.count()[0] for group in file.groups)


def count_is_exact(file: ScenarioFile) -> bool:
    """False where many ``exclude`` rules over many combinations make counting what they leave too slow."""
    return all(group.count()[1] for group in file.groups)


def plan_cells(file: ScenarioFile, *, force: bool = False, found: FoundCluster | None = None) -> tuple[Cell, ...]:
    """The cells of a scenario in file order, each once.

    ``found``: the cluster that measured cells run on, whose topology holds where the scenario leaves it out. Raises
    SpecError with the count when there are more than ``MAX_CELLS`` and ``force`` is false, and with every rule between
    fields that a cell breaks.
    """
    number = count_cells(file)
    if number > MAX_CELLS and not force:
        most = "" if count_is_exact(file) else "at most "
        message = f"{most}{number} cells are more than {MAX_CELLS}; shorten the lists, or confirm with --yes"
        raise SpecError(Problem(file.file, None, "matrix", number, message))
    return tuple(iterate_cells(file, found=found))


def iterate_cells(file: ScenarioFile, *, found: FoundCluster | None = None) -> Iterator[Cell]:
    """The cells of a scenario one by one, however many; raises at the end when some break a rule."""
    reader = Reader(file.folder)
    problems: dict[str, Problem] = {}
    seen: set[str] = set()
    for group in file.groups:
        for raw, assigned in group.points():
            read, faults = reader.read(raw)
            if read is not None and found is not None:
                read, faults = reader.read(found.under(raw, read))
            if read is not None:
                cell, faults = resolve_cell(read, scenario=file.name, group=group.name)
                if cell is not None and cell.cell_id not in seen:
                    seen.add(cell.cell_id)
                    yield cell
            for problem in (file.problem(fault, group, assigned) for fault in faults):
                problems.setdefault(str(problem), problem)
            if len(problems) >= _MOST_PROBLEMS:
                raise SpecError(problems.values())
    if problems:
        raise SpecError(problems.values())


def estimate_seconds(cells: Sequence[Cell]) -> float:
    """About how long the cells run at most: a measured one to the end of its budget, a simulated one in a moment."""
    real = [cell for cell in cells if cell.engine != "simulate"]
    gangs = {(len(cell.measured_ranks), cell.cluster.device) for cell in real}
    measured = sum(cell.measure.max_seconds + PREPARE_S for cell in real)
    return START_S * bool(cells) + GANG_S * len(gangs) + measured + SIMULATE_S * (len(cells) - len(real))


def cell_label(cell: Cell, siblings: Sequence[Cell] | None = None) -> str:
    """A short name of a cell for people: with ``siblings``, what sets it apart from them."""
    return cell_labels(siblings).get(cell.cell_id) or _label(cell, _USUAL) if siblings else _label(cell, _USUAL)


def cell_labels(cells: Sequence[Cell]) -> dict[str, str]:
    """Labels by cell id for a whole plan: the fewest usual parts that tell its cells apart, then any other field."""
    chosen: list[str] = []
    rows: list[tuple[str, ...]] = [()] * len(cells)
    for name, part in _PARTS.items():
        longer = [(*row, part(cell)) for row, cell in zip(rows, cells, strict=True)]
        if len(set(longer)) > len(set(rows)):
            chosen, rows = [*chosen, name], longer
    others = _other_fields(cells, rows) if len(set(rows)) < len(cells) else [()] * len(cells)
    return {
        cell.cell_id: " ".join((_label(cell, chosen or _USUAL), *more))
        for cell, more in zip(cells, others, strict=True)
    }


def _other_fields(cells: Sequence[Cell], rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The fields without a part of their own that tell apart what ``rows`` leaves alike, as ``context_tokens=4096``."""
    flat = [
        {".".join(keys): value for keys, value in leaves(cell.model_dump(mode="json", exclude=_NAMES)).items()}
        for cell in cells
    ]
    said: list[tuple[str, ...]] = [()] * len(cells)
    for path in dict.fromkeys(path for fields in flat for path in fields):
        texts = [f"{path.rpartition('.')[2]}={fields.get(path)}" for fields in flat]
        longer = [(*row, text) for row, text in zip(rows, texts, strict=True)]
        if len(set(longer)) > len(set(rows)):
            rows, said = longer, [(*words, text) for words, text in zip(said, texts, strict=True)]
    return said


def _label(cell: Cell, names: Sequence[str]) -> str:
    return " ".join(dict.fromkeys(text for name in names if (text := _PARTS[name](cell)))) or cell.cell_id


def _kind(cell: Cell) -> str:
    scope = cell.scope
    match scope.kind:
        case "all_to_all":
            return f"all_to_all {size_text(scope.bytes_per_rank)}"
        case "grouped_gemm":
            return f"grouped_gemm {scope.groups}x{scope.m}x{scope.n}x{scope.k}"
        case "quantize":
            return f"quantize {scope.rows}x{scope.columns}"
    return "" if scope.kind == "layer" else scope.kind


def _settings(value: Any) -> str:
    """A tagged choice with what differs from its defaults: ``power_law alpha=1.2``."""
    said = value.model_dump(exclude_defaults=True, exclude={"kind", "path"})
    return " ".join([value.kind, *(f"{name}={setting}" for name, setting in said.items())])


_PARTS: dict[str, Callable[[Cell], str]] = {
    "model": lambda cell: cell.model.name if cell.model else "",
    "scope": _kind,
    "hardware": lambda cell: cell.cluster.hardware.name,
    "ep": lambda cell: f"ep{cell.ep}",
    "gpus": lambda cell: f"{cell.cluster.nodes}x{cell.cluster.gpus_per_node}",
    "tp": lambda cell: f"tp{cell.parallel.tp}",
    "phase": lambda cell: cell.workload.phase,
    "precision": lambda cell: cell.precision.name,
    "tokens": lambda cell: f"{cell.workload.tokens_per_rank}tok",
    "sources": lambda cell: f"{_settings(cell.workload.sources)} sources",
    "skew": lambda cell: _settings(cell.workload.skew),
    "data": lambda cell: _settings(cell.workload.data),
    "seed": lambda cell: f"seed{cell.workload.seed}",
    "router": lambda cell: cell.router.kind,
    "kernel": lambda cell: cell.kernel,
    "strategy": lambda cell: cell.dispatch.strategy,
    "wire": lambda cell: f"{cell.dispatch.dispatch_dtype}>{cell.dispatch.combine_dtype}",
    "overlap": lambda cell: _settings(cell.dispatch.overlap),
    "placement": lambda cell: cell.balance.placement.kind,
    "redundant": lambda cell: f"+{cell.balance.placement.redundant_experts}",
    "capacity": lambda cell: f"capacity={cell.balance.capacity}",
    "offload": lambda cell: cell.offload.tier,
    "engine": lambda cell: cell.engine,
    "method": lambda cell: cell.method,
    "group": lambda cell: cell.group,
}
_NAMES = {"cell_id", "scenario", "group", "model"}
_USUAL = ("model", "scope", "hardware", "ep", "precision", "tokens", "strategy")
