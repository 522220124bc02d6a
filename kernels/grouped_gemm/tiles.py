"""Tile choice of the Triton grouped GEMM: the one table to edit when tuning."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """Block sizes, launch shape, and how many row blocks share a column block's weights before the next (L2 reuse)."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    group_m: int


# Weight format -> (largest mean rows an expert, tile), ascending; the last entry takes the rest.
# e4m3_block: block_k is the scale group of 128, and block_n divides the 128 rows of a weight scale.
TILES: dict[str, tuple[tuple[float, Tile], ...]] = {
    "bf16": (
        (16, Tile(16, 64, 128, 4, 4, 1)),
        (32, Tile(32, 64, 128, 4, 4, 1)),
        (64, Tile(64, 128, 64, 4, 4, 1)),
        (float("inf"), Tile(128, 128, 64, 8, 4, 8)),
    ),
    "e4m3_block": (
        (64, Tile(64, 64, 128, 4, 4, 1)),
        (float("inf"), Tile(128, 128, 128, 8, 3, 8)),
    ),
}


def choose_tile(weights_format: str, *, num_rows: int, num_experts: int) -> Tile:
    """Tile for the mean rows of an expert, as the counts themselves are on the device."""
    mean_rows = num_rows / min(num_experts, num_rows)
    return next(tile for largest, tile in TILES[weights_format] if mean_rows <= largest)
