"""The result table of a run in a terminal: one table for each engine and device, never mixed."""

from collections.abc import Sequence

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from workbench.analysis.columns import DESCRIBING, varying_columns
from workbench.report.conditions import condition_groups, group_title
from workbench.report.units import MISSING, bytes_text, interval_text, number_text, percent_text

SHORT = {"tokens_per_rank": "tokens", "num_gpus": "GPUs", "bytes_per_rank": "bytes/rank", "strategy": "dispatch",
         "gpus_per_node": "GPUs/node", "redundant_experts": "redundant", "training_balance": "balance"}  # fmt: skip
STATUS_STYLE = {"ok": "green", "unsupported": "yellow", "infeasible": "yellow", "error": "red"}
ALWAYS, MIN_WORD, PADDING, STATE_WIDTH = 2, 4, 3, 16
NUMERIC = ("num_gpus", "nodes", "ep", "tp", "dp", "pp", "tokens_per_rank", "bytes_per_rank")


def print_table(console: Console, cells: pd.DataFrame) -> None:
    """Print the cells: what varies, latency with its interval, error against float32, and reasons where there are any.

    ``cells`` is the frame of the ``cells`` table. Prints a line instead when it is empty.
    """
    if cells.empty:
        console.print("no cells yet")
        return
    for _, group in condition_groups(cells):
        table, left_out = _group_table(group, width=console.width)
        console.print(table)
        constant = constants_text(group)
        if constant:
            console.print(Text(f"in every row: {constant}", style="dim"))
        if left_out:
            console.print(Text(f"a wider terminal shows too: {', '.join(left_out)}", style="dim"))
        console.print()


def constants_text(cells: pd.DataFrame, *, among: Sequence[str] = DESCRIBING) -> str:
    """The describing columns that hold one value in all rows, as ``model gpt-oss-120b, ep 8``."""
    said = {"engine", "device", "hardware", "method", "group", "redundant_experts"}
    same = [name for name in among if name in cells and name not in said and cells[name].nunique(dropna=False) == 1]
    values = [(SHORT.get(name, name), cells[name].iloc[0]) for name in same]
    return ", ".join(f"{name} {value}" for name, value in values if not pd.isna(value) and value not in ("none", ""))


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


def _group_table(cells: pd.DataFrame, *, width: int) -> tuple[Table, list[str]]:
    """The table of a group, and the names of figures that ``width`` columns have no room for."""
    title, note = group_title(cells)
    table = plain_table(title, note)
    varying = [name for name in varying_columns(cells) if name not in ("group", "method")]
    if "precision" not in varying:
        varying.append("precision")
    words = {name: [MISSING if pd.isna(value) else str(value) for value in cells[name]] for name in varying}
    states = _states(cells) if (cells["status"] != "ok").any() else []
    heads = {SHORT.get(name, name): texts for name, texts in words.items()}
    room = width - sum(_width(head, texts) for head, texts in heads.items()) - (STATE_WIDTH if states else 0)
    figures, left_out = _fitting(_figure_columns(cells), room)
    for name, head in zip(varying, heads, strict=True):
        table.add_column(head, justify="right" if name in NUMERIC else "left", overflow="fold", min_width=MIN_WORD)
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    if states:
        table.add_column("status", overflow="fold")
    for index in range(len(cells)):
        row: list[str | Text] = [texts[index] for texts in (*words.values(), *figures.values())]
        table.add_row(*row, *states[index : index + 1])
    return table, left_out


def _states(cells: pd.DataFrame) -> list[Text]:
    reasons = ["" if pd.isna(reason) else f": {reason}" for reason in cells["reason"]]
    pairs = zip(cells["status"], reasons, strict=True)
    return [Text(f"{status}{reason}", style=STATUS_STYLE.get(status, "")) for status, reason in pairs]


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


def _figure_columns(cells: pd.DataFrame) -> dict[str, list[str]]:
    """Texts of the figures worth a column: those of which any row has one."""
    intervals = zip(cells["latency_ci_low_us"], cells["latency_us"], cells["latency_ci_high_us"], strict=True)
    with_interval = bool(cells["latency_ci_low_us"].notna().any())
    columns = {
        "latency (95% interval)" if with_interval else "latency": [interval_text(*values) for values in intervals],
        "rel error": [number_text(value) for value in cells["rel_error"]],
        "comm": [percent_text(value) for value in cells["comm_fraction"]],
        "scale-out": [bytes_text(value) for value in cells["scale_out_bytes"]],
        "busbw GB/s": [number_text(value) for value in cells["busbw_gb_per_s"]],
        "TFLOP/s": [number_text(value) for value in cells["tflops"]],
        "math": [MISSING if pd.isna(value) else str(value) for value in cells["math_path"]],
    }
    return {name: texts for name, texts in columns.items() if any(text != MISSING for text in texts)}
