"""Throughput and efficiency over the number of GPUs: measured points over simulated bands of the same hardware."""

from collections.abc import Iterator

import pandas as pd
import plotly.graph_objects as go

from workbench.report.conditions import CPU_NOTE, ENGINE_WORDS, is_measured_cpu
from workbench.report.figures.panels import Tables, empty_figure, panel_figure
from workbench.report.labels import cell_labels
from workbench.report.theme import CYCLE
from workbench.report.units import number_text, time_text

FOLLOWING = ("num_gpus", "nodes", "gpus_per_node", "ep", "dp", "engine", "method", "device", "hardware")
"""Columns that change along a line, or that the panel's title tells."""
HOW = "line and band: simulated, with its error band; dots and bars: measured, with the 95% interval"
EFFICIENCY = "efficiency: throughput per GPU over that of the fewest GPUs of the same line"
HEIGHT = 280
MAX_LINES = 12


def build(cells: pd.DataFrame, tables: Tables) -> go.Figure:
    """``tokens_per_s`` per GPU and its share of that at the fewest GPUs, over ``num_gpus``; a colour a setting."""
    known = _with_throughput(cells)
    groups = [(key, group) for key, group in known.groupby(["device", "hardware"], sort=False)]
    groups = [(key, group) for key, group in groups if group["num_gpus"].nunique() > 1]
    if not groups:
        return empty_figure("No cells of several GPU counts. Run one: moe-workbench run deepseek-v3")
    heads = [head for key, group in groups for head in (_title(str(key[1]), group), EFFICIENCY)]
    figure = panel_figure(heads, [HEIGHT] * len(heads))
    colors: dict[str, str] = {}
    for number, (_, group) in enumerate(groups):
        row = 2 * number + 1
        for label, engine, line in _lines(group):
            fresh = label not in colors
            color = colors.setdefault(label, CYCLE[len(colors) % len(CYCLE)])
            first = line["per_gpu"].iloc[0]
            _add(figure, row, label, engine, line, color=color, legend=fresh)
            share = line.assign(**{name: line[name] / first for name in ("per_gpu", "low", "high")})
            _add(figure, row + 1, label, engine, share, color=color, legend=False)
        _axes(figure, row, group)
    return figure


def _with_throughput(cells: pd.DataFrame) -> pd.DataFrame:
    """The ``ok`` cells with ``per_gpu`` tokens a second and its interval ``low`` to ``high``."""
    usable = cells[(cells["status"] == "ok") & cells["num_gpus"].notna() & cells["latency_us"].notna()]
    number = usable["num_gpus"].astype(float)
    per_gpu = usable["tokens_per_s_per_gpu"].astype(float).fillna(usable["tokens_per_s"].astype(float) / number)
    latency = usable["latency_us"].astype(float)
    ends = {}
    for name, of in (("low", "high"), ("high", "low")):
        time = usable[f"latency_ci_{of}_us"].astype(float).fillna(usable[f"band_{of}_us"].astype(float))
        ends[name] = per_gpu * latency / time.fillna(latency)
    return usable.assign(per_gpu=per_gpu, **ends).dropna(subset=["per_gpu"])


def _title(hardware: str, group: pd.DataFrame) -> str:
    engines = ", ".join(ENGINE_WORDS.get(str(name), str(name)) for name in group["engine"].unique())
    methods = ", ".join(str(name) for name in group["method"].dropna().unique())
    note = f"<br><i>{CPU_NOTE}</i>" if is_measured_cpu(group) else ""
    left_out = len(set(cell_labels(group, without=FOLLOWING))) - MAX_LINES
    more = f"; {left_out} settings left out, filter to see them" if left_out > 0 else ""
    return f"<b>throughput per GPU on {hardware}, {engines}, method {methods}</b><br>{HOW}{more}{note}"


def _lines(group: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    labelled = group.assign(label=cell_labels(group, without=FOLLOWING))
    kept = list(dict.fromkeys(labelled["label"]))[:MAX_LINES]
    shown = labelled[labelled["label"].isin(kept)]
    for (label, engine), line in shown.groupby(["label", "engine"], sort=False):
        yield str(label), str(engine), line.sort_values("num_gpus").drop_duplicates("num_gpus")


def _add(figure: go.Figure, row: int, label: str, engine: str, line: pd.DataFrame, *, color: str, legend: bool) -> None:
    counts = line["num_gpus"].astype(int)
    if engine == "simulate":
        band = go.Scatter(
            x=[*counts, *counts[::-1]], y=[*line["high"], *line["low"][::-1]], fill="toself", fillcolor=color,
            opacity=0.15, line={"width": 0}, hoverinfo="skip", showlegend=False, legendgroup=label,
        )  # fmt: skip
        figure.add_trace(band, row=row, col=1)
    bars = {"type": "data", "symmetric": False, "array": line["high"] - line["per_gpu"],
            "arrayminus": line["per_gpu"] - line["low"], "visible": engine != "simulate"}  # fmt: skip
    hover = [
        f"{label}<br>{ENGINE_WORDS.get(engine, engine)}, {cell['num_gpus']} GPUs: {number_text(cell['per_gpu'])}"
        f"<br>latency {time_text(cell['latency_us'])}"
        for cell in line.to_dict("records")
    ]
    trace = go.Scatter(
        x=counts, y=line["per_gpu"], mode="lines+markers" if engine == "simulate" else "markers", name=label,
        legendgroup=label, showlegend=legend, line={"color": color, "width": 1.5}, error_y=bars, hovertext=hover,
        hoverinfo="text",
        marker={"color": color, "size": 6 if engine == "simulate" else 11,
                "symbol": "circle" if engine == "simulate" else "diamond"},
    )  # fmt: skip
    figure.add_trace(trace, row=row, col=1)


def _axes(figure: go.Figure, row: int, group: pd.DataFrame) -> None:
    counts = sorted({int(number) for number in group["num_gpus"]})
    where = "ranks" if is_measured_cpu(group) else "GPUs"
    for place in (row, row + 1):
        figure.update_xaxes(type="log", tickvals=counts, ticktext=[str(n) for n in counts], title_text=where,
                            row=place, col=1)  # fmt: skip
    figure.update_yaxes(title_text="tokens/s per GPU", rangemode="tozero", row=row, col=1)
    figure.update_yaxes(title_text="efficiency", tickformat=".0%", rangemode="tozero", row=row + 1, col=1)
