"""Colours and type of every figure: the Okabe-Ito palette, which colour-blind readers can tell apart."""

BLACK, ORANGE, SKY, GREEN = "#4d4d4d", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#999999"
CYCLE: tuple[str, ...] = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, YELLOW, BLACK)
"""Order of use for values without a colour of their own. Black is lightened so that it shows on a dark page."""

PRECISION_COLORS = {
    "bf16": GREY, "fp8_tensor": SKY, "fp8_row": SKY, "fp8_block": BLUE, "mxfp8": GREEN, "mxfp4_w4a16": ORANGE,
    "mxfp4_w4a8": YELLOW, "mxfp4": VERMILLION, "nvfp4_w4a16": PURPLE, "nvfp4": VERMILLION,
}  # fmt: skip
STAGE_COLORS = {
    "gate": GREY, "quantise": YELLOW, "dispatch": BLUE, "permute": GREEN, "gemm1": VERMILLION, "activation": PURPLE,
    "gemm2": ORANGE, "unpermute": "#66C5AB", "combine": SKY, "shared_expert": BLACK,
    "count_exchange": "#004D7A", "finish": "#C9C9C9", "experts": VERMILLION,
}  # fmt: skip
LINK_COLORS = {"self": GREY, "scale_up": SKY, "scale_out": VERMILLION}
STRATEGY_COLORS = {
    "flat": ORANGE, "node_dedup": BLUE, "none": GREY, "flat_padded": YELLOW, "pairwise": GREEN, "bruck": PURPLE,
    "two_dh": SKY, "multilevel_dedup": "#004D7A", "packed": VERMILLION, "low_latency": BLACK,
    "allgather_reduce_scatter": "#66C5AB", "balanced_stages": "#882255",
}  # fmt: skip
VERDICT_SYMBOLS = {"faster": "triangle-right", "slower": "triangle-left", "same": "circle", "unclear": "circle-open"}

TEXT = "#7a7a7a"
"""Grey that reads on white and on near-black, for figures that do not know the page they will stand on."""
GRID = "rgba(128, 128, 128, 0.25)"
FONT = "system-ui, -apple-system, Segoe UI, sans-serif"


def color_of(value: str, index: int, fixed: dict[str, str]) -> str:
    """The fixed colour of a known value, else the cycle's."""
    return fixed.get(value, CYCLE[index % len(CYCLE)])
