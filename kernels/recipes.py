"""Named recipes: which format the expert weights are stored in and which one the activations are multiplied in."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """``weights`` and ``activations`` are names in ``kernels.formats.FORMATS``."""

    name: str
    weights: str
    activations: str


RECIPES: dict[str, Recipe] = {
    name: Recipe(name, weights, activations)
    for name, weights, activations in (
        ("bf16", "bf16", "bf16"),
        ("fp8_tensor", "e4m3_tensor", "e4m3_tensor"),
        ("fp8_row", "e4m3_row", "e4m3_row"),
        ("fp8_block", "e4m3_block", "e4m3_block"),
        ("mxfp8", "mxfp8", "mxfp8"),
        ("mxfp4_w4a16", "mxfp4", "bf16"),
        ("mxfp4_w4a8", "mxfp4", "mxfp8"),
        ("mxfp4", "mxfp4", "mxfp4"),
        ("nvfp4_w4a16", "nvfp4", "bf16"),
        ("nvfp4", "nvfp4", "nvfp4"),
    )
}

_FORMAT_NAMES = {("bf16", "none"): "bf16", ("e4m3", "mx"): "mxfp8", ("e2m1", "mx"): "mxfp4", ("e2m1", "nvfp4"): "nvfp4"}
_FORMAT_NAMES |= {
    (element, granularity): f"{element}_{granularity}"
    for element in ("e4m3", "e5m2")
    for granularity in ("tensor", "row", "block")
}


def format_name(element: str, granularity: str) -> str:
    """The format of an element type and a granularity, or ValueError if there is no such format."""
    if (element, granularity) not in _FORMAT_NAMES:
        known = ", ".join(f"{kind}/{grain}" for kind, grain in _FORMAT_NAMES)
        raise ValueError(f"no number format for element {element!r} with granularity {granularity!r}; known: {known}")
    return _FORMAT_NAMES[element, granularity]
