"""Interpolation of published rows, a token count left out; and the rows that no part could have produced."""

import pandas as pd

from workbench.run.fit_constants import published_rows, wide_rows
from workbench.run.held_out import by_fold, by_token
from workbench.run.validation.lines import band_of_other_families, band_of_others, breakdown, line
from workbench.simulate.published_moe import moe_layers, wide_layers
from workbench.spec.validation import ValidationRow

HELD_OUT = (
    "moe_layer rows below the part's peak; one token count with all its distributions left out of each curve, its time "
    "interpolated from the others; the constants behind it are fitted to every other token count, never to this one"
)
BEYOND = (
    "the two ends of each curve; what lies beyond the last point takes its ratio to the model; each band is made of "
    "the ends of other families of the kernel"
)
COVERED = "; each band is made of the family's other token counts"


def published_section() -> list[ValidationRow]:
    """Lines of the method ``published``."""
    found = by_token(published_rows())
    inside, ends = band_of_others(found[~found["is_end"]]), band_of_other_families(found[found["is_end"]])
    fields = {"section": "published", "method": "published", "split": "token count", "held_out": HELD_OUT + COVERED}
    beyond = fields | {"split": "ends of the curve", "held_out": BEYOND}
    return [
        line(inside, goals={"mape": 6.5, "coverage": (75, 90)}, **fields),
        line(ends, points=True, **beyond),
        *breakdown(inside, **fields),
    ]


def wide_ep_section() -> list[ValidationRow]:
    """Experts behind a dispatch, EP 2 to 256: rows of ``moe_wide_ep`` by both methods."""
    rows = wide_rows()
    tokens, folds = by_token(rows), by_fold(rows)
    inside = band_of_others(tokens[~tokens["is_end"]])
    told = HELD_OUT.replace("moe_layer rows", "moe_wide_ep rows of one expert a slot,") + COVERED
    fields = {"section": "wide_ep", "method": "published", "split": "token count", "held_out": told}
    by_row = {
        "section": "wide_ep", "method": "calibrated", "split": "row",
        "held_out": "the same rows, a fifth of each family left out at a time; bands of the other folds",
    }  # fmt: skip
    folds = band_of_others(folds)
    return [line(inside, **fields), line(folds, **by_row), *breakdown(inside, **fields), *breakdown(folds, **by_row)]


def above_peak_section() -> list[ValidationRow]:
    """Rows set aside, by hardware, kernel, dtype and shape: they imply more than the part's bandwidth or FLOPs."""
    frame = pd.concat([moe_layers(), wide_layers()])
    frame = frame[frame["above_peak"]]
    keys = ["hardware", "source", "dtype", "hidden", "inter", "top_k", "num_experts", "tp", "ep", "distribution"]
    lines = []
    for key, rows in frame.groupby(keys):
        hardware, source, dtype, *shape, tp, ep, distribution = key
        tokens = ", ".join(str(tokens) for tokens in sorted(rows["tokens"]))
        lines.append(
            ValidationRow(
                section="above_peak",
                method=source,
                split="/".join(map(str, shape)) + f" tp {tp} ep {ep} {distribution}",
                hardware=hardware,
                dtype=dtype,
                tokens=tokens,
                count=len(rows),
                held_out="set aside everywhere: bytes of the experts touched, or FLOPs, above the part's peak",
            )
        )
    return lines
