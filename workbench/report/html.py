"""The HTML report: one file that opens offline, answer first, then figures, conditions and every cell."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
from plotly.offline import get_plotlyjs

from workbench.analysis.load_metrics import load_figures
from workbench.report.conditions import condition_groups, group_title
from workbench.report.figures import FIGURES
from workbench.report.html_style import SCRIPT, STYLE
from workbench.report.labels import cell_labels
from workbench.report.notes import flag_texts
from workbench.report.summary import Finding, summarise
from workbench.report.units import bytes_text, interval_text, number_text, percent_text
from workbench.spec.load_metrics import DEFINITIONS, definition_lines
from workbench.store.files import write_atomically
from workbench.store.reader import read_tables, unreadable_files
from workbench.store.run_folder import RunFolder, run_info
from workbench.store.strict_json import to_json

LONG = ("scenario_text",)
COMMAND = "command"


def write_report(run: RunFolder, path: Path) -> None:
    """Write the report of a run to ``path``, making its folder. Raises ValueError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, b"")  # refuse before the work, not after it
        write_atomically(path, report_html(run).encode("utf-8"))
    except OSError as error:
        raise ValueError(f"report {path}: cannot be written ({error.strerror or error})") from error


def report_html(run: RunFolder) -> str:
    """The whole document; plotly.js is in it once, nothing is fetched."""
    tables = {name: result.frame for name, result in read_tables(run).items()}
    cells, info, manifest = tables["cells"], run_info(run), run.manifest()
    damaged = tuple(f"{name}: unreadable, passed over" for name in unreadable_files(run))
    findings = summarise(cells, tables["samples"]) + ([Finding("Damaged files", damaged)] if damaged else [])
    parts = [
        f"<h1>{escape(info.name)}</h1>",
        f"<p class='sub'>run {escape(info.run_id)}, {escape(info.status)}, {escape(str(info.created_at))}</p>",
        f"<section class='answer'><h2>In short</h2>{''.join(map(_finding, findings))}</section>",
        *(
            _figure_section(name, cells, tables)
            for name, spec in FIGURES.items()
            if spec.in_report and spec.suits(cells)
        ),
        _load_section(cells, tables),
        "<h2>Every cell</h2>",
        *(_cells_table(group) for _, group in condition_groups(cells)),
        _conditions(cells, manifest),
        _reproduce(manifest),
    ]
    head = f"<meta charset='utf-8'><title>{escape(info.name)}</title><style>{STYLE}</style>"
    body = "\n".join(parts)
    return (
        f"<!doctype html><html lang='en'><head>{head}<script>{get_plotlyjs()}</script></head>"
        f"<body><main>{body}</main><script>{SCRIPT}</script></body></html>"
    )


def _finding(finding: Finding) -> str:
    lines = "".join(f"<li>{escape(sentence)}</li>" for sentence in finding.sentences)
    return f"<h3>{escape(finding.head)}</h3><ul>{lines}</ul>"


def _figure_section(name: str, cells: pd.DataFrame, tables: Mapping[str, pd.DataFrame]) -> str:
    spec = FIGURES[name]
    figure = spec.build(cells, tables)
    drawing = figure.to_html(
        full_html=False, include_plotlyjs=False, div_id=f"figure-{name}", default_height=f"{figure.layout.height}px",
        config={"responsive": True, "displaylogo": False},
    )  # fmt: skip
    return f"<section><h2>{escape(spec.title)}</h2><p class='sub'>{escape(spec.question)}</p>{drawing}</section>"


def _load_section(cells: pd.DataFrame, tables: Mapping[str, pd.DataFrame]) -> str:
    """Figures of every load, their definitions below."""
    figures = load_figures(cells, tables)
    if figures.empty:
        return ""
    labels = dict(zip(cells["cell_id"], cell_labels(cells), strict=True))
    rows = []
    for row in figures.to_dict("records"):
        texts = (labels[row["cell_id"]], row["level"], str(row["count"]))
        texts += tuple(number_text(row[name]) for name in DEFINITIONS)
        rows.append("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in texts) + "</tr>")
    heads = ("setting", "counted", "N", *(definition.title for definition in DEFINITIONS.values()))
    header = "".join(f"<th>{escape(head)}</th>" for head in heads)
    table = f"<div class='wide'><table><tr>{header}</tr>{''.join(rows)}</table></div>"
    said = "".join(f"<li>{escape(line)}</li>" for line in definition_lines(figures["level"].unique()))
    return f"<section><h2>How even the loads were</h2>{table}<ul class='sub'>{said}</ul></section>"


def _cells_table(cells: pd.DataFrame) -> str:
    title, note = group_title(cells)
    heads = ("setting", "precision", "latency (95% interval)", "rel. error", "comm.", "scale-out", "memory", "status")
    rows = []
    for label, row in zip(cell_labels(cells, without=("precision",)), cells.to_dict("records"), strict=True):
        reason = "" if pd.isna(row["reason"]) else f": {row['reason']}"
        notes = "".join(f"; {text}" for text in flag_texts(row["flags"]))
        texts = (
            label, row["precision"],
            interval_text(row["latency_ci_low_us"], row["latency_us"], row["latency_ci_high_us"]),
            number_text(row["rel_error"]), percent_text(row["comm_fraction"]), bytes_text(row["scale_out_bytes"]),
            bytes_text(row["peak_memory_bytes"]), f"{row['status']}{reason}{notes}",
        )  # fmt: skip
        cells_html = "".join(f"<td>{escape(str(text))}</td>" for text in texts)
        rows.append(f"<tr class='{escape(str(row['status']))}'>{cells_html}</tr>")
    header = "".join(f"<th>{head}</th>" for head in heads)
    caption = f"<p><b>{escape(title)}</b> {f'<em>{escape(note)}</em>' if note else ''}</p>"
    return f"{caption}<div class='wide'><table><tr>{header}</tr>{''.join(rows)}</table></div>"


def _conditions(cells: pd.DataFrame, manifest: Mapping[str, Any]) -> str:
    seeds = ", ".join(str(seed) for seed in sorted(cells["seed"].dropna().unique()))
    pairs = [("seeds", seeds or "-"), *flat_items({k: v for k, v in manifest.items() if k not in LONG})]
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in pairs)
    return f"<h2>Conditions</h2><div class='wide'><table class='facts'>{rows}</table></div>"


def flat_items(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Dotted names and texts of a nested mapping; lists stay in one line."""
    items: list[tuple[str, str]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            items += flat_items(value, f"{prefix}{key}.")
        else:
            items.append((f"{prefix}{key}", value if isinstance(value, str) else to_json(value)))
    return items


def _reproduce(manifest: Mapping[str, Any]) -> str:
    command = str(manifest.get(COMMAND) or "moe-workbench run scenario.yaml")
    text = str(manifest.get("scenario_text") or "")
    scenario = f"<p>with <code>scenario.yaml</code>:</p><pre>{escape(text)}</pre>" if text else ""
    return f"<h2>Reproduce</h2><pre>{escape(command)}</pre>{scenario}"
