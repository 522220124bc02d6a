"""The constants against rows that they have never seen: shapes of the installed tables that the package lacks."""

from collections.abc import Iterator

import pandas as pd

from workbench.run.held_out import rows_of
from workbench.run.validation.lines import by_tokens, line, with_band
from workbench.simulate.aiconfigurator_tables import layer_tables, tables_dir
from workbench.simulate.families import Family, all_families, bands
from workbench.simulate.published_moe import SHAPE, THEIR_NAMES, renamed, with_work
from workbench.spec.validation import ValidationRow

ROWS_A_TABLE = 1500
SEED = 0
TWO_GEMMS = {(1024, 2688), (2688, 1856), (2048, 5120), (8192, 5120), (4096, 2688)}
"""(hidden, intermediate) of layers without a gate's product, which the model of three products does not describe."""
HELD_OUT = (
    f"{ROWS_A_TABLE} rows at random of each installed table of aiconfigurator-core, of kernels that the package has "
    "constants of and shapes that it has no rows of; rows above the peak set aside; the band is that of an unseen shape"
)


def installed_section() -> list[ValidationRow]:
    """A line per hardware and kernel; one that says so where no tables are installed."""
    fields = {"section": "installed", "method": "calibrated", "split": "never seen", "held_out": HELD_OUT}
    if tables_dir() is None:
        told = "aiconfigurator-core 0.12.0 is not installed: pip install 'moe-workbench[tables]'"
        return [ValidationRow(**fields | {"held_out": told}, count=0)]
    parts = list(_predicted())
    frame = pd.concat(parts, ignore_index=True)
    lines = [line(frame, **fields), *(line(part, tokens=name, **fields) for name, part in by_tokens(frame))]
    for (hardware, kernel), part in frame.groupby(["hardware", "kernel"]):
        lines.append(line(part, points=True, **fields | {"hardware": hardware, "split": f"never seen, {kernel}"}))
    return lines


def _predicted() -> Iterator[pd.DataFrame]:
    """Rows of every table with ``predicted_us`` and the band, by family."""
    families = {(one.hardware, one.kernel, one.version): [] for one in all_families() if one.kind == "published"}
    for one in all_families():
        if one.kind == "published":
            families[one.hardware, one.kernel, one.version].append(one)
    for (hardware, kernel, version), known in families.items():
        table = layer_tables(THEIR_NAMES[hardware], kernel, version)
        if table is None:
            continue
        frame = renamed(table.sample(min(len(table), ROWS_A_TABLE), random_state=SEED))
        for family in known:
            part = _unseen(frame, family)
            if len(part):
                rows = rows_of(part)
                band = bands()["published"]["unseen_shape_by_kernel"].get(kernel, bands()["published"]["unseen_shape"])
                yield with_band(rows.frame.assign(predicted_us=rows.modelled_us(family.constants)), *band)


def _unseen(frame: pd.DataFrame, family: Family) -> pd.DataFrame:
    mine = frame["source"].eq(family.source) & frame["dtype"].eq(family.dtype)
    mine &= (frame["num_experts"] % frame["ep"]).eq(0) & (frame["inter"] % frame["tp"]).eq(0)
    frame = frame[mine]
    shapes = list(frame[list(SHAPE)].itertuples(index=False, name=None))
    new = [shape not in family.shapes and shape[:2] not in TWO_GEMMS for shape in shapes]
    frame = with_work(frame[new].reset_index(drop=True))
    return frame[~frame["above_peak"]]
