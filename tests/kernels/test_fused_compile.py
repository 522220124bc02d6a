"""The fused GEMMs compiled for GPUs that need not be here: they fit, and multiply with the instructions claimed."""

import re

import pytest

pytest.importorskip("triton")
from kernels.compile import compile_expert_gemm, compiled_math_path, multiply_instructions
from kernels.grouped_gemm.candidates import candidates
from kernels.grouped_gemm.tiles import LAYER_TILES, Tile, fit
from kernels.moe import math_path
from kernels.tuned import load_table, module_name

H200 = load_table("NVIDIA H200", (9, 0))
EDGES = [(name, row) for name, rows in H200["tiles"].items() for row in (rows[0], rows[-1])]


@pytest.mark.parametrize(("weights_format", "row"), EDGES, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("gated", [True, False])
def test_tuned_tiles_of_the_h200_compile_and_multiply_as_claimed(weights_format, row, gated):
    tile = Tile(*row[1 if gated else 2])
    gpt_oss = weights_format in ("mxfp4", "nvfp4")
    n_size, k_size = (2880, 2880) if gpt_oss else (2048, 7168)
    built = compile_expert_gemm(
        weights_format, capability=90, tile=tile, gated=gated, n_size=n_size, k_size=k_size, gpt_oss=gpt_oss
    )
    found = multiply_instructions(built.ptx)
    assert found
    element = ".e4m3.e4m3" if weights_format == "e4m3_block" else "bf16"
    assert all(element in name for name in found)
    if tile.swap or tile.block_m >= 64:
        assert all(name.startswith("wgmma.") for name in found)


@pytest.mark.parametrize("weights_format", ["mxfp4", "nvfp4"])
def test_fp4_goes_from_memory_to_the_tensor_core_through_registers(weights_format):
    """The words are read in the operand's own layout, so the decoded weights never go back to shared memory."""
    tile = Tile(16, 64, 128, 4, 4, 1, True)
    ptx = compile_expert_gemm(weights_format, capability=90, tile=tile, gated=True, n_size=2880, k_size=2880).ptx
    assert re.search(r"wgmma\.mma_async\S+ \{[^}]*\}, \{%r\d+,%r\d+,%r\d+,%r\d+\},", ptx)
    loop = ptx[ptx.index("wgmma.mma_async") : ptx.rindex("wgmma.mma_async")]
    assert "mul.bf16x2" in loop
    assert "st.shared" not in loop


@pytest.mark.parametrize("weights_format", ["bf16", "e4m3_block", "e4m3_row"])
@pytest.mark.parametrize("gated", [True, False])
def test_weights_through_descriptors_are_copied_by_the_copy_engine(weights_format, gated):
    """Gate and up are one product: as many matrix instructions for the gated GEMM, of twice the columns."""
    block_n = {"bf16": 128, "e4m3_block": 64, "e4m3_row": 64}[weights_format]
    tile = Tile(64, block_n, 64 if weights_format == "bf16" else 128, 4, 3, 8, tma=True)
    sizes = {"gated": gated, "n_size": 2048, "k_size": 7168}
    ptx = compile_expert_gemm(weights_format, capability=90, tile=tile, **sizes).ptx
    assert "cp.async.bulk.tensor" in ptx
    columns = block_n * (2 if gated else 1)
    assert all(f"m64n{columns}k" in name for name in multiply_instructions(ptx))


def test_few_pairs_need_no_order():
    ptx = compile_expert_gemm(
        "bf16", capability=90, tile=Tile(16, 64, 128, 4, 4, 1), gated=True, n_size=2048, k_size=7168, direct=True
    ).ptx
    assert multiply_instructions(ptx)


@pytest.mark.parametrize(
    ("capability", "family"), [(80, "bf16"), (89, "bf16"), (100, "bf16"), (100, "fp4"), (100, "e4m3")]
)
def test_general_tiles_fit_other_gpus(capability, family):
    shared_bytes = {80: 163, 89: 99, 100: 227}[capability] * 1024
    name = {"fp4": "mxfp4", "e4m3": "e4m3_row"}.get(family, family)
    rows = LAYER_TILES[family][:1] if capability == 100 else LAYER_TILES[family]
    for _, tiles in rows:
        for parts, tile in ((2, tiles.gemm1), (1, tiles.gemm2)):
            fitted = fit(tile, family, parts=parts, shared_bytes=shared_bytes)
            built = compile_expert_gemm(
                name, capability=capability, tile=fitted, gated=parts == 2, n_size=512, k_size=512
            )
            assert multiply_instructions(built.ptx)
            assert built.shared_bytes <= shared_bytes


def test_math_path_is_what_the_compiled_code_does(monkeypatch):
    hopper = {"device_type": "cuda", "capability": (9, 0)}
    expected = {"bf16": "native", "fp8_block": "native", "fp8_row": "native", "fp8_tensor": "native"}
    expected |= {"mxfp4_w4a16": "upcast", "nvfp4_w4a16": "upcast", "mxfp4_w4a8": "emulated", "mxfp4": "emulated"}
    assert {name: math_path(name, **hopper) for name in expected} == expected
    compiled_math_path.cache_clear()
    monkeypatch.setattr("kernels.compile.multiply_instructions", lambda ptx: {"mma.sync.m16n8k16.f32.bf16.bf16.f32"})
    assert math_path("fp8_block", **hopper) == "emulated"
    compiled_math_path.cache_clear()


def test_names_of_tables_and_candidates_share_their_rows():
    assert module_name("NVIDIA H200") == "nvidia_h200"
    assert load_table("a GPU nobody has", (7, 0)) is None
    assert load_table("NVIDIA H100", (9, 0)) is H200
    for weights_format in ("bf16", "e4m3_block", "nvfp4"):
        for mean_rows in (1, 32, 512):
            first, second = candidates(weights_format, mean_rows)
            assert {t.block_m for t in first} & {t.block_m for t in second}
