"""Which formats a training step multiplies in: weights and activations forward, gradients backward."""

from dataclasses import dataclass

from kernels.formats import FORMATS
from kernels.scaling import KINDS

EXACT = "exact"
"""Instead of a format: the operands as they are, multiplied in their own dtype (float64 for gradcheck)."""


@dataclass(frozen=True)
class TrainRecipe:
    """``weights``, ``activations`` and ``gradients`` are names in ``kernels.formats.FORMATS``, or all ``exact``.

    ``scaling`` delayed wants tensor-wide scales (or bf16). ``amax_history`` is its length in steps.
    """

    name: str
    weights: str
    activations: str
    gradients: str
    scaling: str = "current"
    amax_history: int = 16
    scale_rule: str | None = None
    overflow: str = "saturate"

    def __post_init__(self) -> None:
        formats = (self.weights, self.activations, self.gradients)
        if EXACT in formats:
            if set(formats) != {EXACT}:
                raise ValueError(f"precision {self.name}: exact goes with exact alone, got {', '.join(formats)}")
            return
        for field, name in zip(("weights", "activations", "gradients"), formats, strict=True):
            if name not in FORMATS:
                raise ValueError(f"precision.{field}: {name!r} is unknown; known: {', '.join(FORMATS)}")
            if FORMATS[name].element_bits < 8:
                raise ValueError(f"precision.{field}: {name} is too narrow to train in; use bf16 or an FP8 format")
        if self.scaling not in KINDS:
            raise ValueError(f"precision.scaling: {self.scaling!r} is unknown; known: {', '.join(KINDS)}")
        blocked = [name for name in formats if name != "bf16" and not name.endswith("_tensor")]
        if self.scaling == "delayed" and blocked:
            raise ValueError(f"precision.scaling: delayed wants tensor-wide scales, not {blocked[0]}; use current")

    @property
    def is_exact(self) -> bool:
        return self.weights == EXACT


def default_gradients(weights_format: str) -> str:
    """E5M2 with the granularity of E4M3 weights; MXFP8 keeps E4M3, as its scales of 32 already follow the range."""
    return weights_format.replace("e4m3_", "e5m2_")


TRAIN_RECIPES: dict[str, TrainRecipe] = {
    recipe.name: recipe
    for recipe in (
        TrainRecipe(EXACT, EXACT, EXACT, EXACT),
        TrainRecipe("bf16", "bf16", "bf16", "bf16"),
        TrainRecipe("fp8_tensor", "e4m3_tensor", "e4m3_tensor", "e5m2_tensor"),
        TrainRecipe("fp8_tensor_delayed", "e4m3_tensor", "e4m3_tensor", "e5m2_tensor", scaling="delayed"),
        TrainRecipe("fp8_row", "e4m3_row", "e4m3_row", "e5m2_row"),
        TrainRecipe("fp8_block", "e4m3_block", "e4m3_block", "e5m2_block"),
        TrainRecipe("mxfp8", "mxfp8", "mxfp8", "mxfp8"),
    )
}


def train_recipe(precision: str | TrainRecipe) -> TrainRecipe:
    """The named recipe, or one made by hand as it is; ValueError for an unknown name."""
    if isinstance(precision, TrainRecipe):
        return precision
    if precision not in TRAIN_RECIPES:
        raise ValueError(f"precision: {precision!r} cannot be trained in; known: {', '.join(TRAIN_RECIPES)}")
    return TRAIN_RECIPES[precision]
