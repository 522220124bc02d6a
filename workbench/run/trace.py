"""The profile of a cell: passes of their own after everything that is timed, recorded on the first rank."""

from collections.abc import Callable

from workbench.measure.profiling import Stages, record_trace, run_passes
from workbench.run.context import RankContext


def trace_of(context: RankContext, stages: Callable[[], Stages]) -> bytes | None:
    """A gzipped Chrome trace on the first rank of a profiled cell, else None. All ranks must call it: stages send."""
    if not context.profile:
        return None
    context.barrier()
    if context.rank:
        run_passes(stages(), device=context.device)
        return None
    return record_trace(stages(), device=context.device)
