"""The result table of a run in a terminal: one table for each engine and device, never mixed."""

from collections.abc import Sequence

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from workbench.analysis.best import best_cells
from workbench.analysis.columns import DESCRIBING, settings
from workbench.report.conditions import condition_groups, group_title
from workbench.report.labels import cell_labels, setting_text
from workbench.report.notes import Notes, cell_notes
from workbench.report.units import MISSING, bytes_text, interval_text, number_text, percent_text

SHORT = {"tokens_per_rank": "tokens", "num_gpus": "GPUs", "bytes_per_rank": "bytes/rank", "strategy": "dispatch",
         "gpus_per_node": "GPUs/node", "redundant_experts": "redundant", "training_balance": "balance"}  # fmt: skip
STATUS_STYLE = {"ok": "green", "unsupported": "yellow", "infeasible": "yellow", "error": "red"}
ALWAYS, MIN_WORD, LABEL_WIDTH, PADDING = 2, 4, 30, 3
SETTING = "setting"
BEST, BEST_STYLE = " *", "bold green"
BEST_NOTE = "* fastest of its setting, and by more than the figures are unsure"
NUMERIC = ("num_gpus", "nodes", "ep", "tp", "dp", "pp", "tokens_per_rank", "bytes_per_rank")


def print_table(console: Console, cells: pd.DataFrame) -> None:
    """Print the cells: what varies, latency with its interval, error against float32; notes below say what was not run
    and why, and what limits a figure.

    ``cells`` is the frame of the ``cells`` table. Prints a line instead when it is empty.
    """
    if cells.empty:
        console.print("no cells yet")
        return
    for _, group in condition_groups(cells):
        notes = cell_notes(group)
        table, left_out = _group_table(group, notes, width=console.width)
        console.print(table)
        print_notes(console, notes)
        constant = constants_text(group)
        if constant:
            console.print(Text(f"in every row: {constant}", style="dim"))
        if left_out:
            console.print(Text(f"a wider terminal shows too: {', '.join(left_out)}", style="dim"))
        console.print()


def print_notes(console: Console, notes: Notes) -> None:
    """The notes that a table's marks point to."""
    for mark, note in enumerate(notes.numbered, start=1):
        style = STATUS_STYLE.get(note.partition(":")[0], "")
        console.print(Text(f"({mark}) {note}", style=style))
    for note in notes.general:
        console.print(Text(note, style="yellow"))


def constants_text(cells: pd.DataFrame, *, among: Sequence[str] = DESCRIBING) -> str:
    """The describing columns that hold one value in all rows, as ``model gpt-oss-120b, ep 8``."""
    said = {"engine", "device", "hardware", "method", "group", "redundant_experts"}
    same = [name for name in among if name in cells and name not in said and cells[name].nunique(dropna=False) == 1]
    values = [(name, cells[name].iloc[0]) for name in same]
    known = [(name, value) for name, value in values if not pd.isna(value) and value not in ("none", "")]
    return ", ".join(f"{SHORT.get(name, name)} {setting_text(name, value)}" for name, value in known)


def plain_table(title: str = "", caption: str = "") -> Table:
    """A table in the style of all commands."""
    return Table(
        title=Text(title, style="bold") if title else None,
        caption=Text(caption, style="yellow") if caption else None,
        title_justify="left",
        caption_justify="left",
        header_style="bold",
        pad_edge=False,
        box=SIMPLE_HEAD,
    )


def setting_columns(told: pd.DataFrame, *, labels: Sequence[str], width: int) -> dict[str, list[str]]:
    """Heads and texts of what tells rows apart: a column each, or ``labels`` alone in less room than that needs."""
    texts = {
        name: [MISSING if pd.isna(value) else setting_text(name, value) for value in told[name].astype(object)]
        for name in told
    }
    if not texts or sum(_width(SHORT.get(name, name), column) for name, column in texts.items()) > width:
        return {SETTING: list(labels)}
    return texts


def add_settings(table: Table, columns: dict[str, list[str]], *, width: int) -> None:
    """The columns of ``setting_columns``; a label may take several lines, broken between its words."""
    for name in columns:
        least = max(MIN_WORD, min(LABEL_WIDTH, width - PADDING)) if name == SETTING else MIN_WORD
        justify = "right" if name in NUMERIC else "left"
        table.add_column(SHORT.get(name, name), justify=justify, overflow="fold", min_width=least)


def _group_table(cells: pd.DataFrame, notes: Notes, *, width: int) -> tuple[Table, list[str]]:
    """The table of a group, and the names of figures that ``width`` columns have no room for."""
    best = best_cells(cells)
    title, warning = group_title(cells)
    table = plain_table(title, "\n".join(text for text in (warning, BEST_NOTE if best.any() else "") if text))
    states = _states(cells, notes.marks) if (cells["status"] != "ok").any() or any(notes.marks) else []
    state_width = max((len(state.plain) for state in states), default=-PADDING) + PADDING
    offered = _figure_columns(cells, best)
    least, _ = _fitting(offered, 0)
    room = width - state_width
    room_for_words = room - sum(_width(name, texts) for name, texts in least.items())
    words = setting_columns(settings(cells), labels=cell_labels(cells), width=room_for_words)
    taken = LABEL_WIDTH + PADDING if SETTING in words else sum(_width(SHORT.get(n, n), t) for n, t in words.items())
    figures, left_out = _fitting(offered, room - taken)
    add_settings(table, words, width=room_for_words)
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    if states:
        table.add_column("status", no_wrap=True)
    for index in range(len(cells)):
        row: list[str | Text] = [texts[index] for texts in words.values()]
        row += [Text(text, BEST_STYLE) if text.endswith(BEST) else text for text in _at(figures, index)]
        table.add_row(*row, *states[index : index + 1])
    return table, left_out


def _at(columns: dict[str, list[str]], index: int) -> list[str]:
    return [texts[index] for texts in columns.values()]


def _states(cells: pd.DataFrame, marks: Sequence[str]) -> list[Text]:
    pairs = zip(cells["status"], marks, strict=True)
    return [Text(f"{status} {mark}".rstrip(), style=STATUS_STYLE.get(status, "")) for status, mark in pairs]


def _fitting(figures: dict[str, list[str]], room: int) -> tuple[dict[str, list[str]], list[str]]:
    """As many figures from the first as there is room for, but never fewer than the two that matter most."""
    kept: dict[str, list[str]] = {}
    for name, texts in figures.items():
        room -= _width(name, texts)
        if room >= 0 or len(kept) < ALWAYS:
            kept[name] = texts
    return kept, [name for name in figures if name not in kept]


def _width(head: str, texts: Sequence[str]) -> int:
    return max(map(len, (head, *texts))) + PADDING


def _figure_columns(cells: pd.DataFrame, best: pd.Series) -> dict[str, list[str]]:
    """Texts of the figures worth a column: those of which any row has one; the best latencies are marked."""
    intervals = zip(cells["latency_ci_low_us"], cells["latency_us"], cells["latency_ci_high_us"], strict=True)
    with_interval = bool(cells["latency_ci_low_us"].notna().any())
    latencies = [interval_text(*values) for values in intervals]
    if best.any():
        marks = [BEST if is_best else " " * len(BEST) for is_best in best]
        latencies = [text + mark if text != MISSING else text for text, mark in zip(latencies, marks, strict=True)]
    columns = {
        "latency (95% interval)" if with_interval else "latency": latencies,
        **_serving_columns(cells),
        "rel error": [number_text(value) for value in cells["rel_error"]],
        "comm": [percent_text(value) for value in cells["comm_fraction"]],
        "scale-out": [bytes_text(value) for value in cells["scale_out_bytes"]],
        "busbw GB/s": [number_text(value) for value in cells["busbw_gb_per_s"]],
        "TFLOP/s": [number_text(value) for value in cells["tflops"]],
        "math": [MISSING if pd.isna(value) else str(value) for value in cells["math_path"]],
    }
    return {name: texts for name, texts in columns.items() if any(text != MISSING for text in texts)}


def _serving_columns(cells: pd.DataFrame) -> dict[str, list[str]]:
    """Rates of whole models; of single layers they would say nothing."""
    whole = cells["scope"] == "model"
    return {
        "tok/s/GPU": [number_text(value) for value in cells["tokens_per_s_per_gpu"].where(whole)],
        "TTFT": [interval_text(None, value, None) for value in cells["ttft_us"].where(whole)],
        "TPOT": [interval_text(None, value, None) for value in cells["tpot_us"].where(whole)],
        "$/Mtok": [number_text(value) for value in cells["usd_per_million_tokens"].where(whole)],
    }
