"""Triton kernels compiled for GPUs that need not be here: they build, fit shared memory, and multiply as claimed."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
from kernels.compile import compile_block_table, compile_grouped_gemm, compile_row_kernels, multiply_instructions
from kernels.grouped_gemm.tiles import TILES

ROOT = Path(__file__).resolve().parents[2]
FIRST, LAST = 0, -1


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("which", [FIRST, LAST])
def test_bf16_compiles_everywhere(capability, which):
    built = compile_grouped_gemm(
        "bf16", capability=capability, k_size=2880, tile=TILES["bf16"][which][1], has_bias=True
    )
    found = multiply_instructions(built.ptx)
    if capability == 80 or which == FIRST:
        assert all("mma.sync" in name and "bf16" in name for name in found)
    else:
        assert all(name.startswith({90: "wgmma.", 100: "tcgen05.mma"}[capability]) for name in found)
    assert found


@pytest.mark.parametrize("tile", [tile for _, tile in TILES["e4m3_block"]], ids=str)
def test_fp8_block_on_sm_90_is_native(tile):
    found = multiply_instructions(compile_grouped_gemm("e4m3_block", capability=90, k_size=7168, tile=tile).ptx)
    assert found
    assert all(name.startswith("wgmma.") and name.endswith(".e4m3.e4m3") for name in found)


def test_fp8_block_on_sm_100_is_native():
    found = multiply_instructions(compile_grouped_gemm("e4m3_block", capability=100, k_size=7168).ptx)
    assert found
    assert all("tcgen05.mma" in name and "f8f6f4" in name for name in found)


def test_fp8_block_on_sm_80_is_refused():
    with pytest.raises(ValueError, match=r"does not compile for sm_80: (?s:.)*fp8e4nv not supported"):
        compile_grouped_gemm("e4m3_block", capability=80, k_size=256)


def test_loads_are_pipelined_over_several_stages():
    """One stage of the last BF16 tile is 32 KiB, so more shared memory means that copies run ahead of the product."""
    tile = TILES["bf16"][LAST][1]
    stage_bytes = 2 * (tile.block_m + tile.block_n) * tile.block_k
    assert compile_grouped_gemm("bf16", capability=90, k_size=7168, tile=tile).shared_bytes >= 3 * stage_bytes


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_the_kernels_around_the_gemm_compile(capability):
    assert compile_block_table(capability=capability, num_experts=384).ptx
    built = compile_row_kernels(capability=capability)
    assert set(built) == {"activation", "combine"} | ({"quantise"} if capability >= 90 else set())


def test_kernels_use_64_bit_offsets():
    ptx = compile_grouped_gemm("bf16", capability=90, k_size=2880).ptx
    assert "mul.lo.s64" in ptx or "mad.lo.s64" in ptx or "mul.wide" in ptx


def test_torch_backend_never_imports_triton():
    program = (
        "import sys, torch\n"
        "from kernels.moe import moe_layer, prepare_weights\n"
        "experts = prepare_weights(torch.ones(2, 8, 4), torch.ones(2, 4, 4), precision='fp8_block')\n"
        "moe_layer(torch.ones(3, 4).bfloat16(), torch.zeros(3, 1, dtype=torch.int32), torch.ones(3, 1), experts)\n"
        "assert not any(name == 'kernels.triton_rows' or name.endswith('triton_gemm') for name in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
