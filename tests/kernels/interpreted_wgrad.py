"""Runs the Triton kernels of the backward in the interpreter and prints how far each is from its torch twin, as JSON.

Started by test_triton_wgrad.py with TRITON_INTERPRET=1, which has to be set before triton is imported.
"""

import json
from dataclasses import replace

import torch

from kernels.backward import train_layer
from kernels.formats import FORMATS
from kernels.grouped_gemm.dgrad import grouped_dgrad
from kernels.grouped_gemm.triton_dgrad import TILES, triton_dgrad
from kernels.grouped_gemm.triton_wgrad import WgradTile, triton_wgrad, turn_rows
from kernels.grouped_gemm.wgrad import grouped_wgrad
from kernels.permute import block_experts

FORMAT_PAIRS = {
    "bf16": ("bf16", "bf16"),
    "block": ("e5m2_block", "e4m3_block"),
    "e4m3 block": ("e4m3_block", "e4m3_block"),
    "tensor": ("e5m2_tensor", "e4m3_tensor"),
}
# rows an expert, N, K, rows past the last offset
SHAPES = {
    "odd sizes": ([1, 0, 0, 40], 33, 70, 2),
    "several groups an expert": ([130, 0, 1, 260], 150, 130, 5),
    "no rows in any expert": ([0, 0], 16, 16, 3),
}


def distance(value: torch.Tensor, twin: torch.Tensor) -> float:
    """Relative RMS difference; infinite if either holds what is not finite."""
    value, twin = value.float(), twin.float()
    if value.shape != twin.shape or not (value.isfinite().all() and twin.isfinite().all()):
        return float("inf")
    return float((value - twin).norm() / twin.norm().clamp(min=1e-30))


def operands(counts, n_size, k_size, tail):
    generator = torch.Generator().manual_seed(n_size)
    offsets = torch.tensor([0, *counts]).cumsum(0)
    num_rows = int(offsets[-1]) + tail
    magnitude = torch.logspace(-6, 2, num_rows)[:, None]
    grads, rows = (torch.randn(num_rows, n, generator=generator) for n in (n_size, k_size))
    grads[num_rows - tail :] = float("nan")
    rows[:, 3] = 0
    return (grads * magnitude).bfloat16(), rows.bfloat16(), offsets


def wgrad_case(formats: tuple[str, str], shape: tuple) -> list[float]:
    grads, rows, offsets = operands(*shape)
    how = {"grads_format": formats[0], "rows_format": formats[1]}
    twin = grouped_wgrad(grads, rows, offsets, backend="torch", **how)
    distances = [distance(grouped_wgrad(grads, rows, offsets, backend="triton", **how), twin)]
    if formats[0] == "bf16":
        small = WgradTile(16, 32, 16, 4, 2)
        distances.append(distance(triton_wgrad(grads, rows, offsets, tile=small, **how), twin))
    return distances


def turned_case(name: str) -> bool:
    """Codes and scales of each group are those of the twin, bit for bit, with NaN, infinity, zeros and small values."""
    counts = [130, 0, 5]
    grads, _, offsets = operands(counts, 37, 4, 2)
    grads[1, 2], grads[0, 5], grads[131, 1], grads[:, 7] = float("inf"), float("nan"), float("-inf"), 0
    grads[:, 8] *= 2.0**-18
    groups = block_experts(torch.tensor(counts), 128)
    codes, scale = turn_rows(grads, name, offsets, (groups.experts, groups.starts))
    decode = FORMATS[name].decode
    for group, (start, end) in enumerate(((0, 128), (128, 130), (130, 135))):
        twin = FORMATS[name].encode(grads[start:end].T.contiguous())
        mine = codes.view(torch.uint8)[:, 128 * group : 128 * group + end - start].contiguous()
        same = torch.allclose(decode(replace(twin, data=mine)), decode(twin), rtol=0, atol=0, equal_nan=True)
        if not same or not torch.equal(scale[group], twin.scale[:, 0]):
            return False
    return not codes.view(torch.uint8)[:, 130:256].any()


def dgrad_case(formats: tuple[str, str], shape: tuple) -> list[float]:
    counts, n_size, k_size, tail = shape
    grads, _, offsets = operands(counts, n_size, k_size, tail)
    grads[len(grads) - tail :] = 1
    generator = torch.Generator().manual_seed(k_size)
    entry = FORMATS[formats[1]]
    w = entry.encode(torch.randn(len(counts), k_size, n_size, generator=generator), weights=True)
    encoded = grads if formats[0] == "bf16" else FORMATS[formats[0]].encode(grads)
    twin, mine = (grouped_dgrad(encoded, offsets, w, grads_format=formats[0], backend=b) for b in ("torch", "triton"))
    tiles = [tile for _, tile in TILES["bf16" if formats[0] == "bf16" else "fp8"]]
    by_tile = [distance(triton_dgrad(encoded, offsets, w, tile=tile), twin) for tile in tiles]
    return [distance(mine, twin), *by_tile, float(mine[len(mine) - tail :].abs().sum())]


def layer_case(precision: str) -> float:
    """Gradients of a whole layer, worst tensor: every product of it in Triton where Triton has it."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.rand(11, 5, generator=generator).topk(2, dim=1).indices.int()
    ids[4, 1] = -1
    shapes = {"x_TH": (11, 48), "weights_TK": (11, 2), "w13_E2IH": (5, 64, 48), "w2_EHI": (5, 48, 32)}
    values = {name: torch.randn(*shape, generator=generator) / shape[-1] ** 0.5 for name, shape in shapes.items()}
    results = []
    for backend in ("triton", "torch"):
        leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
        x = leaves.pop("x_TH")
        train_layer(x.bfloat16(), ids, precision=precision, backend=backend, **leaves).float().sum().backward()
        results.append([x.grad, *(leaf.grad for leaf in leaves.values())])
    return max(map(distance, *results))


def main() -> None:
    print(
        json.dumps(
            {
                "wgrad": {
                    f: {name: wgrad_case(pair, shape) for name, shape in SHAPES.items()}
                    for f, pair in FORMAT_PAIRS.items()
                },
                "dgrad": {
                    f: {name: dgrad_case(pair, shape) for name, shape in SHAPES.items()}
                    for f, pair in FORMAT_PAIRS.items()
                },
                "turned": {name: turned_case(name) for name in ("e4m3_block", "e5m2_block")},
                "layer": {precision: layer_case(precision) for precision in ("bf16", "fp8_block")},
            }
        )
    )


if __name__ == "__main__":
    main()
