"""Runs the quantise kernels on the CPU in triton's interpreter and prints, as JSON, where they differ from torch.

Started by test_triton_quantise.py with TRITON_INTERPRET=1, which has to be set before triton is imported.
"""

import json
from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels.formats import FORMATS
from kernels.formats.elements import to_e2m1, to_e4m3, to_e5m2
from kernels.formats.nvfp4 import _global_scale
from kernels.formats.triton_elements import element_codes
from kernels.formats.triton_encode import (
    triton_encode_fp8,
    triton_encode_mx,
    triton_encode_nvfp4,
    triton_matrix_amax,
)

NAN, INF = float("nan"), float("inf")
CASTS = {"e4m3": to_e4m3, "e5m2": to_e5m2, "e2m1": to_e2m1}
# shape, dtypes: tails of every block, several matrices, several tiles, one value
CASES = {
    (5, 33): (torch.float32, torch.bfloat16, torch.float16),
    (2, 3, 257): (torch.float32,),
    (130, 140): (torch.bfloat16,),
    (1, 1): (torch.float32,),
}


@triton.jit
def cast_kernel(x_ptr, code_ptr, element: tl.constexpr, overflow: tl.constexpr, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    x = tl.load(x_ptr + at)
    negative = (x.to(tl.int32, bitcast=True) >> 31) & 1
    tl.store(code_ptr + at, element_codes(x, negative, element, overflow).to(tl.uint8))


def elements() -> torch.Tensor:
    """Every bf16, and the float32 neighbours of each."""
    every = (torch.arange(65536, dtype=torch.int32) << 16).view(torch.float32)
    bits = every.view(torch.int32)
    return torch.cat([every, (bits + 1).view(torch.float32), (bits - 1).view(torch.float32)])


def cast_case(element: str, overflow: str) -> int:
    """How many casts differ from the torch twin's."""
    x = elements()
    codes, block = torch.empty(x.shape, dtype=torch.uint8), 1 << 14
    cast_kernel[(x.numel() // block,)](x, codes, element=element, overflow=overflow, block=block)
    twin = to_e2m1(x) if element == "e2m1" else CASTS[element](x, overflow)
    return int((codes != twin).sum())


def tensor_of(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Rows of many magnitudes with zeros of both signs, subnormals, infinities, and NaN of both signs."""
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator)
    x = x * torch.exp2(torch.randint(-30, 30, (*shape[:-1], 1), generator=generator))
    flat = x.view(-1, shape[-1])
    if len(flat) > 4:
        flat[1], flat[2, ::2] = 0.0, -0.0
        flat[3] *= 2.0**-140
        flat[4, ::3] = INF
        flat[4, 1::7] *= -INF
    if len(flat) > 1:
        flat[0, 3], flat[0, -1] = NAN, torch.tensor(-1, dtype=torch.int32).view(torch.float32)
    return x.to(dtype)


def fp8_case(x: torch.Tensor, element: str, granularity: str, weights: bool, rule: str, overflow: str) -> bool:
    options = {"weights": weights, "scale_rule": rule, "overflow": overflow}
    twin = FORMATS[f"{element}_{granularity}"].encode(x, **options)
    codes, scale = triton_encode_fp8(x, element=element, granularity=granularity, **options)
    return torch.equal(codes, twin.data) and torch.equal(scale, twin.scale)


def fp8_options() -> Iterator[tuple[str, bool, str, str]]:
    for granularity, weights in (("tensor", False), ("row", False), ("block", False), ("block", True)):
        for rule, overflow in (("none", "saturate"), ("ceil", "nan")):
            yield granularity, weights, rule, overflow


def mx_case(x: torch.Tensor, name: str, rule: str, overflow: str) -> bool:
    twin = FORMATS[name].encode(x, scale_rule=rule, overflow=overflow)
    data, scale = triton_encode_mx(x, name=name, scale_rule=rule, overflow=overflow)
    return torch.equal(data, twin.data) and torch.equal(scale, twin.scale)


def nvfp4_case(x: torch.Tensor, given: float | None) -> bool:
    lead = x.shape[:-2]
    global_scale = None if given is None else torch.full(lead, given)
    twin = FORMATS["nvfp4"].encode(x, global_scale=global_scale)
    if global_scale is None:
        global_scale = _global_scale(triton_matrix_amax(x, group=16))
    data, scale = triton_encode_nvfp4(x, global_scale)
    same = torch.equal(data, twin.data) and torch.equal(scale, twin.scale)
    return same and torch.equal(global_scale, twin.global_scale)


def format_cases() -> dict[str, list[str]]:
    """For each format the cases that differ from the twin."""
    wrong: dict[str, list[str]] = {}
    for shape, dtypes in CASES.items():
        for dtype in dtypes:
            x, label = tensor_of(shape, dtype), f"{shape} {dtype}"
            for element in ("e4m3", "e5m2"):
                for options in fp8_options():
                    found = wrong.setdefault(f"{element}_{options[0]}", [])
                    found += [] if fp8_case(x, element, *options) else [f"{label} {options}"]
            for name, overflows in (("mxfp8", ("saturate", "nan")), ("mxfp4", ("saturate",))):
                for options in ((rule, overflow) for rule in ("floor", "ceil", "even") for overflow in overflows):
                    found = wrong.setdefault(name, [])
                    found += [] if mx_case(x, name, *options) else [f"{label} {options}"]
            for given in (None, 448.0, 1e-3):
                found = wrong.setdefault("nvfp4", [])
                found += [] if nvfp4_case(x, given) else [f"{label} global scale {given}"]
    return wrong


def nan_block_case() -> bool:
    """The largest number of a matrix lies in a block with NaN and does not count; a matrix all NaN has a scale too."""
    x = torch.ones(2, 3, 40)
    x[0, 1, 3], x[0, 1, 5], x[1] = NAN, 1000.0, NAN
    amax = triton_matrix_amax(x, group=16)
    return amax.tolist() == [1.0, 0.0] and triton_matrix_amax(x, group=1)[0] == 1000.0 and nvfp4_case(x, None)


def strided_case() -> bool:
    """A transposed matrix and a slice are encoded as their copies are."""
    whole = tensor_of((40, 64), torch.float32)
    return all(mx_case(view, "mxfp4", "floor", "saturate") for view in (whole.T, whole[1:, 3:50], whole[::2]))


def main() -> None:
    casts = {
        f"{element} {overflow}": cast_case(element, overflow)
        for element in CASTS
        for overflow in (("saturate",) if element == "e2m1" else ("saturate", "nan"))
    }
    print(json.dumps({"casts": casts, "formats": format_cases(), "strided": strided_case(), "nan": nan_block_case()}))


if __name__ == "__main__":
    main()
