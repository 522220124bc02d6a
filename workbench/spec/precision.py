"""Number formats, their bytes, and the named quantisation recipes. No torch here; a test ties the bytes to kernels."""

from math import ceil
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from workbench.spec.base import Count, Frozen, Text
from workbench.spec.errors import unknown_name

FormatName = Literal["bf16", "e4m3", "e5m2", "e2m1"]
Granularity = Literal["none", "tensor", "row", "block", "mx", "nvfp4"]


class NumberFormat(Frozen):
    """An element format and how its scales are laid out.

    ``block`` is 1x128 for activations and 128x128 for weights (float32 scale); ``mx`` is 1x32 (E8M0);
    ``nvfp4`` is 1x16 (E4M3) with a float32 scale for the tensor.
    """

    format: FormatName
    granularity: Granularity = "none"


class Precision(Frozen):
    """A quantisation recipe of the expert GEMMs."""

    name: Text
    weights: NumberFormat
    activations: NumberFormat
    gradients: NumberFormat | None = None
    scaling: Literal["current", "delayed"] = "current"
    amax_history: Count = 16
    scale_rule: Literal["floor", "ceil", "even", "none"] = "none"
    overflow: Literal["saturate", "nan"] = "saturate"


ELEMENT_BITS = {"bf16": 16, "e4m3": 8, "e5m2": 8, "e2m1": 4}
WIDE = NumberFormat(format="bf16")


def _recipe(name: str, weights: tuple[str, str], activations: tuple[str, str] | None, rule: str = "none") -> Precision:
    inputs = NumberFormat(format=activations[0], granularity=activations[1]) if activations else WIDE
    return Precision(
        name=name,
        weights=NumberFormat(format=weights[0], granularity=weights[1]),
        activations=inputs,
        scale_rule=rule,
    )


PRECISIONS: dict[str, Precision] = {
    recipe.name: recipe
    for recipe in (
        Precision(name="bf16", weights=WIDE, activations=WIDE),
        _recipe("fp8_tensor", ("e4m3", "tensor"), ("e4m3", "tensor")),
        _recipe("fp8_row", ("e4m3", "row"), ("e4m3", "row")),
        _recipe("fp8_block", ("e4m3", "block"), ("e4m3", "block")),
        _recipe("mxfp8", ("e4m3", "mx"), ("e4m3", "mx"), "floor"),
        _recipe("mxfp4_w4a16", ("e2m1", "mx"), None, "floor"),
        _recipe("mxfp4_w4a8", ("e2m1", "mx"), ("e4m3", "mx"), "floor"),
        _recipe("mxfp4", ("e2m1", "mx"), ("e2m1", "mx"), "floor"),
        _recipe("nvfp4_w4a16", ("e2m1", "nvfp4"), None),
        _recipe("nvfp4", ("e2m1", "nvfp4"), ("e2m1", "nvfp4")),
    )
}


def precision_from_text(value: Any) -> Any:
    """A name becomes its recipe; a mapping with a known name starts from that recipe."""
    if isinstance(value, str):
        if value not in PRECISIONS:
            raise ValueError(unknown_name("precision", value, PRECISIONS))
        return PRECISIONS[value]
    if isinstance(value, dict) and isinstance(value.get("name"), str) and value["name"] in PRECISIONS:
        return PRECISIONS[value["name"]].model_dump() | value
    return value


PrecisionSpec = Annotated[Precision, BeforeValidator(precision_from_text)]


def tensor_bytes(number: NumberFormat, rows: int, columns: int, *, weights: bool) -> int:
    """Bytes of rows x columns with the scales; columns is the reduced (K) dimension and a row fills whole bytes."""
    elements = rows * ceil(columns * ELEMENT_BITS[number.format] / 8)
    match number.granularity:
        case "none":
            return elements
        case "tensor":
            return elements + 4
        case "row":
            return elements + 4 * rows
        case "block":
            return elements + 4 * (ceil(rows / 128) if weights else rows) * ceil(columns / 128)
        case "mx":
            return elements + rows * ceil(columns / 32)
        case "nvfp4":
            return elements + rows * ceil(columns / 16) + 4
