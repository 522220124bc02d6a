"""The stages of a run as Chrome trace events, which Perfetto and chrome://tracing open."""

from typing import Any

import pandas as pd

from workbench.report.labels import cell_labels


def chrome_trace(cells: pd.DataFrame, stages: pd.DataFrame) -> dict[str, Any]:
    """A trace object: a process for each cell, a thread for each rank and stream, times in microseconds."""
    events: list[dict[str, Any]] = []
    labels = dict(zip(cells["cell_id"], cell_labels(cells), strict=True))
    for process, (cell_id, rows) in enumerate(stages.groupby("cell_id", sort=False)):
        name = labels.get(cell_id, cell_id)
        events.append({"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}})
        for thread, ((rank, stream), lane) in enumerate(rows.groupby(["rank", "stream"], dropna=False)):
            lane_name = {"name": f"rank {rank} {stream}"}
            events.append({"name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": lane_name})
            for row in lane.to_dict("records"):
                event = {"name": row["stage"], "ph": "X", "pid": process, "tid": thread, "cat": "stage"}
                times = {"ts": row["start_us"], "dur": row["duration_us"]}
                events.append(event | times | {"args": {"bytes": row["bytes"], "flops": row["flops"]}})
    return {"traceEvents": events, "displayTimeUnit": "ms"}
