"""The quantise kernels: equal to torch in triton's interpreter, compiled for GPUs that are not here, and on a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
from kernels.compile import Compiled, compile_kernel
from kernels.formats import FORMATS, Quantised, triton_quantise

ROOT = Path(__file__).resolve().parents[3]
RULES = [(name, rule) for name, entry in FORMATS.items() if name != "bf16" for rule in entry.scale_rules]
POINTERS = {"x_ptr": "*i16", "code_ptr": "*u8", "scale_ptr": "*fp32", "global_ptr": "*fp32", "amax_ptr": "*i32"}
NAMES = {"kind": "bf16", "rule": "none", "overflow": "saturate", "infinity": 3.3895313892515355e38}
# label -> kernel, what differs from NAMES and POINTERS
COMPILED = {
    "e4m3_block": ("quantise_groups_kernel", {"family": "fp8", "element": "e4m3", "group": 128, "block_groups": 4}),
    "e5m2_block": ("quantise_groups_kernel", {"family": "fp8", "element": "e5m2", "group": 128, "block_groups": 4}),
    "mxfp8": ("quantise_groups_kernel", {"family": "mx", "element": "e4m3", "rule": "ceil", "group": 32}),
    "mxfp4": ("quantise_groups_kernel", {"family": "mx", "element": "e2m1", "rule": "even", "group": 32}),
    "nvfp4": ("quantise_groups_kernel", {"family": "nvfp4", "element": "e2m1", "group": 16, "block_groups": 32}),
    "e4m3_block weights": ("quantise_tiles_kernel", {"element": "e4m3", "rule": "ceil", "amax_ptr": None}),
    "e4m3_tensor": ("quantise_tiles_kernel", {"element": "e4m3", "overflow": "nan"}),
    "e5m2_row": ("quantise_rows_kernel", {"element": "e5m2", "block": 4096}),
    "amax": ("amax_kernel", {"group": 1, "block_groups": 512}),
    "amax of groups": ("amax_kernel", {"group": 16, "block_groups": 32}),
}


@pytest.fixture(scope="module")
def interpreted():
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name("interpreted_quantise_cases.py"))],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_casts_in_triton_equal_torch_for_every_bf16_and_its_neighbours(interpreted):
    assert set(interpreted["casts"].values()) == {0}, interpreted["casts"]


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "bf16"])
def test_a17_torch_and_triton_give_the_same_bytes(interpreted, name):
    assert interpreted["formats"][name] == []


def test_triton_encodes_views_as_their_copies(interpreted):
    assert interpreted["strided"]


def test_a17_nvfp4_scale_of_a_matrix_passes_over_nan_blocks(interpreted):
    assert interpreted["nan"] is True


def compiled(label: str, capability: int) -> Compiled:
    kernel_name, changes = COMPILED[label]
    kernel = getattr(triton_quantise, kernel_name)
    rows = {"block_rows": 128, "block_columns": 128} if kernel_name == "quantise_tiles_kernel" else {"block_rows": 8}
    pointers = POINTERS | ({"scale_ptr": "*u8"} if changes.get("family") in ("mx", "nvfp4") else {})
    values = NAMES | rows | {"block_groups": 16} | changes
    constexprs = {name: values[name] for name in kernel.arg_names if name in values}
    if changes.get("family") in ("mx", "fp8"):
        constexprs["global_ptr"] = None
    integers = {name: "i32" for name in kernel.arg_names if name not in constexprs and name not in pointers}
    signature = integers | {name: kind for name, kind in pointers.items() if name in kernel.arg_names}
    return compile_kernel(
        kernel,
        signature=signature,
        constexprs=constexprs,
        capability=capability,
        multiples_of_16=("num_columns",),
        num_warps=8 if kernel_name == "quantise_tiles_kernel" else 4,
    )


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("label", COMPILED)
def test_quantise_kernels_compile_without_fp8_hardware(label, capability):
    ptx = compiled(label, capability).ptx
    assert "e4m3" not in ptx
    assert "e5m2" not in ptx
    assert ".ftz" not in ptx, "subnormals would be lost"
    assert "div.full" not in ptx, "quotients would not be rounded to nearest"
    assert "ld.global.v4.b32" in ptx, "eight values should come in one load"


@pytest.mark.parametrize("label", ["e4m3_block", "e5m2_row", "nvfp4"])
def test_float32_scales_divide_exactly_and_powers_of_two_multiply(label):
    assert "div.rn.f32" in compiled(label, 90).ptx
    for exact in ("mxfp8", "mxfp4", "e4m3_block weights"):
        assert "div." not in compiled(exact, 90).ptx.replace("div.s32", "").replace("div.u32", "")


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def extremes(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(shape[-1])
    x = torch.randn(shape, generator=generator)
    x = x * torch.exp2(torch.randint(-40, 40, (*shape[:-1], 1), generator=generator))
    flat = x.view(-1, shape[-1])
    flat[0, ::5], flat[1], flat[2, ::9] = float("nan"), 0.0, -0.0
    flat[3] *= 2.0**-130
    flat[4, ::3], flat[5, ::3] = float("inf"), -float("inf")
    flat[6, 1] = torch.tensor(-1, dtype=torch.int32).view(torch.float32)
    return x.to(dtype)


def assert_equal(found: Quantised, wanted: Quantised) -> None:
    for part in ("data", "scale", "global_scale"):
        one, other = getattr(found, part), getattr(wanted, part)
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one.cpu(), other.cpu()), part


@needs_gpu
@pytest.mark.parametrize(("shape", "dtype"), [((300, 2880), torch.bfloat16), ((2, 3, 70, 257), torch.float32)])
@pytest.mark.parametrize(("name", "rule"), RULES)
def test_a17_gpu_and_cpu_give_the_same_bytes(name, rule, shape, dtype):
    x, encode = extremes(*shape, dtype=dtype), FORMATS[name].encode
    for weights in (False, True):
        options = {"weights": weights, "scale_rule": rule}
        assert_equal(encode(x.cuda(), **options), encode(x, **options))
    if FORMATS[name].element_bits == 8:
        assert_equal(encode(x.cuda(), scale_rule=rule, overflow="nan"), encode(x, scale_rule=rule, overflow="nan"))


@needs_gpu
@pytest.mark.parametrize("name", ["e4m3_tensor", "e5m2_row", "e4m3_block", "mxfp4", "nvfp4"])
def test_float16_on_gpu_gives_the_bytes_of_the_cpu(name):
    x = extremes(33, 7168, dtype=torch.float16)
    assert_equal(FORMATS[name].encode(x.cuda()), FORMATS[name].encode(x))


@needs_gpu
def test_nvfp4_by_a_given_global_scale_on_gpu():
    x = extremes(3, 70, 257, dtype=torch.bfloat16)
    given = torch.tensor([448.0, 1e-3, 7.0])
    encode = FORMATS["nvfp4"].encode
    assert_equal(encode(x.cuda(), global_scale=given.cuda()), encode(x, global_scale=given))


@needs_gpu
@pytest.mark.parametrize(("name", "rule"), RULES)
def test_encoding_waits_for_nothing_and_replays_in_a_graph(name, rule):
    first, second = (extremes(*shape, dtype=torch.bfloat16) for shape in ((2, 130, 512), (2, 130, 512)))
    second = second.flip(1) * 3
    encode, x = FORMATS[name].encode, first.cuda()
    encode(x, scale_rule=rule)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        encode(x, scale_rule=rule)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        q = encode(x, scale_rule=rule)
    for case in (first, second):
        x.copy_(case)
        graph.replay()
        torch.cuda.synchronize()
        assert_equal(q, encode(case, scale_rule=rule))


@needs_gpu
@pytest.mark.parametrize("name", ["e4m3_tensor", "e4m3_row", "e4m3_block", "mxfp4", "nvfp4"])
def test_c05_offsets_beyond_32_bits_in_quantise(name):
    if torch.cuda.mem_get_info()[0] < 30e9:
        pytest.skip("needs 30 GB of free GPU memory")
    x = torch.zeros(2, 280_000, 4096, dtype=torch.bfloat16, device="cuda")
    tail = extremes(64, 4096, dtype=torch.bfloat16)
    x[1, -64:] = tail.cuda()
    q = FORMATS[name].encode(x)
    assert x.numel() > 2**31
    twin = FORMATS[name].encode(tail)
    assert torch.equal(q.data[1, -64:].cpu(), twin.data)
    scale = q.scale[1] if name == "e4m3_tensor" else q.scale[1, -64:]
    assert torch.equal(scale.cpu(), twin.scale)
