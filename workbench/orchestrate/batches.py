"""Simulated cells: in this process when they are few, else as batches of Ray tasks."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from workbench.orchestrate.session import Session
from workbench.run.describe import failed, unsupported
from workbench.spec.errors import Unsupported
from workbench.spec.record import Outcome
from workbench.spec.scenario import Cell

BATCH = 32
FEW = 64
BATCH_LIMIT_S = 600.0
_POLL_S = 0.25


def simulate_here(cells: Sequence[Cell]) -> Iterator[tuple[Cell, Outcome]]:
    """Simulate in this process: for a few cells that is over before a worker has started."""
    for cell in cells:
        yield cell, simulate_one(cell)


def simulate_one(cell: Cell) -> Outcome:
    """A simulated cell always ends as an outcome, whatever its engine raises."""
    from workbench.run.simulated import run_simulated

    try:
        return run_simulated(cell)
    except Unsupported as gap:
        return unsupported(cell, gap.reason)
    except Exception as error:
        return failed(cell, f"{type(error).__name__}: {error}")


def simulate_batch(cells: Sequence[Cell]) -> list[Outcome]:
    """What one task does. Neighbours in the plan share routed traffic, which their worker keeps."""
    return [simulate_one(cell) for cell in cells]


def simulate_in_tasks(
    session: Session, cells: Sequence[Cell], *, should_stop: Callable[[], bool]
) -> Iterator[tuple[Cell, Outcome]]:
    """Simulate in as many workers as there are cores, results as they come; returns early when asked to stop.

    A batch whose worker dies or outlives 600 s is tried again cell by cell, and a cell that does it alone is an error.
    """
    import ray

    task = ray.remote(simulate_batch).options(num_cpus=1, max_retries=0)
    queue = [tuple(cells[start : start + BATCH]) for start in range(0, len(cells), BATCH)]
    flying: dict[Any, tuple[tuple[Cell, ...], float]] = {}
    try:
        while queue or flying:
            while queue and len(flying) < session.cores:
                batch = queue.pop(0)
                flying[task.remote(batch)] = (batch, time.monotonic() + BATCH_LIMIT_S)
            for batch, outcomes in _landed(flying):
                if not isinstance(outcomes, str):
                    yield from zip(batch, outcomes, strict=True)
                elif len(batch) == 1:
                    yield batch[0], failed(batch[0], f"its simulation ended without a result: {outcomes}")
                else:
                    queue[:0] = [(cell,) for cell in batch]
            if should_stop():
                return
    finally:
        for ref in flying:
            ray.cancel(ref, force=True)


def _landed(flying: dict[Any, tuple[tuple[Cell, ...], float]]) -> list[tuple[tuple[Cell, ...], list[Outcome] | str]]:
    """Batches that are over, taken out of ``flying``, each with its outcomes or with why it has none."""
    import ray

    done, _ = ray.wait(list(flying), num_returns=1, timeout=_POLL_S)
    late = [ref for ref, (_, deadline) in flying.items() if ref not in done and time.monotonic() > deadline]
    for ref in late:
        ray.cancel(ref, force=True)
    landed = [(flying.pop(ref)[0], _outcomes(ref)) for ref in done]
    return landed + [(flying.pop(ref)[0], f"no answer within {BATCH_LIMIT_S:.0f} s") for ref in late]


def _outcomes(ref: object) -> list[Outcome] | str:
    import ray

    try:
        return ray.get(ref, timeout=BATCH_LIMIT_S)
    except ray.exceptions.RayError as error:
        text = str(error).strip()
        return text.splitlines()[0] if text else type(error).__name__
