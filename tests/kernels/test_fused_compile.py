"""The fused GEMMs compiled for GPUs that need not be here: they fit, and multiply with the instructions claimed."""

import re

import pytest

pytest.importorskip("triton")
from kernels.backend import SCALED_PAIRS
from kernels.compile import compile_expert_gemm, compile_kernel, compiled_math_path, multiply_instructions
from kernels.grouped_gemm.candidates import candidates
from kernels.grouped_gemm.tiles import LAYER_TILES, Tile, fit
from kernels.moe import math_path
from kernels.triton_rows_mx import mx_rows_kernel
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
    ("capability", "family"),
    [(80, "bf16"), (89, "bf16"), (100, "bf16"), (100, "fp4"), (100, "e4m3"), (100, "mx8"), (90, "mx8")],
)
def test_general_tiles_fit_other_gpus(capability, family):
    shared_bytes = {80: 163, 89: 99, 90: 227, 100: 227}[capability] * 1024
    name = {"fp4": "mxfp4", "mx8": "mxfp8", "e4m3": "e4m3_row"}.get(family, family)
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
    expected |= {"mxfp4_w4a16": "upcast", "nvfp4_w4a16": "upcast", "mxfp4_w4a8": "upcast", "mxfp4": "emulated"}
    expected |= {"mxfp8": "upcast", "nvfp4": "emulated"}
    assert {name: math_path(name, **hopper) for name in expected} == expected
    compiled_math_path.cache_clear()
    monkeypatch.setattr("kernels.compile.multiply_instructions", lambda ptx: {"mma.sync.m16n8k16.f32.bf16.bf16.f32"})
    assert math_path("fp8_block", **hopper) == "upcast"
    compiled_math_path.cache_clear()


def test_names_of_tables_and_candidates_share_their_rows():
    assert module_name("NVIDIA H200") == "nvidia_h200"
    assert load_table("a GPU nobody has", (7, 0)) is None
    assert load_table("NVIDIA H100", (9, 0)) is H200
    for weights_format in ("bf16", "e4m3_block", "nvfp4", "mxfp8"):
        for mean_rows in (1, 32, 512):
            first, second = candidates(weights_format, mean_rows)
            assert {t.block_m for t in first} & {t.block_m for t in second}


SCALED_INSTRUCTIONS = {
    ("mxfp8", "mxfp8"): "kind::mxf8f6f4.block_scale",
    ("mxfp4", "mxfp8"): "kind::mxf8f6f4.block_scale",
    ("mxfp4", "mxfp4"): "kind::mxf4.block_scale",
    ("nvfp4", "nvfp4"): "kind::mxf4nvf4.block_scale",
}


@pytest.mark.parametrize("pair", SCALED_PAIRS, ids=str)
@pytest.mark.parametrize("gated", [True, False])
def test_blocks_are_scaled_by_the_matrix_unit_of_sm_100(pair, gated):
    for _, tiles in LAYER_TILES["scaled"]:
        tile = fit(tiles.gemm1 if gated else tiles.gemm2, "scaled", parts=1 + gated, shared_bytes=227 * 1024)
        built = compile_expert_gemm(
            pair[0],
            activations_format=pair[1],
            capability=100,
            tile=tile,
            gated=gated,
            n_size=2880,
            k_size=2880,
            gpt_oss=True,
        )
        found = multiply_instructions(built.ptx)
        assert found
        assert all(name.startswith("tcgen05.mma") and SCALED_INSTRUCTIONS[pair] in name for name in found)


def test_math_path_where_the_matrix_unit_scales_blocks():
    blackwell = {"device_type": "cuda", "capability": (10, 0)}
    names = ("mxfp8", "mxfp4_w4a8", "mxfp4", "nvfp4")
    assert {name: math_path(name, **blackwell) for name in names} == dict.fromkeys(names, "native")
    assert math_path("mxfp4_w4a16", **blackwell) == "upcast"


def test_mxfp8_weights_are_decoded_in_registers():
    """Neither the decoded weights nor their factors go back to shared memory inside the loop."""
    for _, tiles in LAYER_TILES["mx8"]:
        ptx = compile_expert_gemm(
            "mxfp8", capability=90, tile=tiles.gemm1, gated=True, n_size=2880, k_size=2880, gpt_oss=True
        ).ptx
        assert re.search(r"wgmma\.mma_async\S+ \{[^}]*\}, \{%r\d+,%r\d+,%r\d+,%r\d+\},", ptx)
        loop = ptx[ptx.index("wgmma.mma_async") : ptx.rindex("wgmma.mma_async")]
        assert "mul.bf16x2" in loop
        assert "st.shared" not in loop


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_rows_are_brought_to_bf16_without_fp8_hardware(capability):
    for encoded, element in ((False, "e4m3"), (False, "e2m1"), (True, "e4m3")):
        types = {"x_ptr": "*u8" if encoded else "*i16", "out_ptr": "*bf16"}
        types |= dict.fromkeys(("num_rows", "num_columns", "stride_x", "stride_om"), "i32")
        constexprs = {"kind": "bf16", "element": element, "rule": "floor", "overflow": "saturate", "encoded": encoded}
        constexprs |= {"paired": True, "block_rows": 16} | ({} if encoded else {"scale_ptr": None})
        types |= {"scale_ptr": "*u8"} if encoded else {}
        assert compile_kernel(mx_rows_kernel, signature=types, constexprs=constexprs, capability=capability).ptx


@pytest.mark.parametrize(("capability", "waits"), [(80, False), (90, True)])
def test_kernels_wait_for_their_inputs_where_they_start_early(capability, waits):
    """One wait, before anything is loaded that a kernel before may have written, and the next kernel let in after."""
    tile = Tile(16, 64, 64, 4, 3, 1)
    built = compile_expert_gemm(
        "bf16", capability=capability, tile=tile, gated=False, n_size=256, k_size=256, direct=True
    )
    order = [word for word in ("prefetch.global.L2", "griddepcontrol.wait", "griddepcontrol.launch_dependents")
             if word in built.ptx]  # fmt: skip
    assert bool(order) == waits
    if waits:
        assert built.ptx.count("griddepcontrol.wait") == 1
        assert sorted(order, key=built.ptx.index) == order
