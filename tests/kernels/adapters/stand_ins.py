"""Peers that only a GPU can run, in plain torch: their published signatures and layouts, computed expert by expert.

They hold an adapter to the argument names, orders, dtypes and paddings that its peer documents. The peers themselves
are run by ``test_adapters_gpu``.
"""

import sys
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import torch

from kernels.formats import FORMATS, Quantised

BLOCK = 128


def spread(scale, rows, columns):
    """Block scales [.., rows/128, columns/128] over the elements they scale."""
    return scale.repeat_interleave(BLOCK, -2)[..., :rows, :].repeat_interleave(BLOCK, -1)[..., :columns]


def wide(weights, scale):
    """FP8 weights in float32: scales a block, a row [E, N, 1] or a matrix [E]."""
    assert weights.dtype == torch.float8_e4m3fn
    if scale.dim() == 1:
        return weights.float() * scale[:, None, None]
    if scale.shape[-1] == 1 and scale.shape[1] == weights.shape[1]:
        return weights.float() * scale
    return weights.float() * spread(scale, *weights.shape[1:])


def swiglu(rows, *, interleaved=False, up_first=False, alpha=None, limit=None):
    gate, up = (rows[:, 0::2], rows[:, 1::2]) if interleaved else rows.chunk(2, dim=1)
    if up_first:
        gate, up = up, gate
    if alpha is None:
        return torch.nn.functional.silu(gate) * up
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


def layer(x, ids, weights, w13, w2, b13, b2, activation, on_input=False):
    out = torch.zeros(x.shape, dtype=torch.float32)
    for e in range(len(w13)):
        tokens, slots = torch.where(ids == e)
        scale = weights[tokens, slots, None]
        rows = x[tokens].float() * (scale if on_input else 1)
        rows = rows @ w13[e].float().T + (0 if b13 is None else b13[e].float())
        rows = activation(rows) @ w2[e].float().T + (0 if b2 is None else b2[e].float())
        out.index_add_(0, tokens, rows if on_input else rows * scale)
    return out.to(torch.bfloat16)


def check_tokens(x, ids, weights):
    assert x.is_contiguous()
    assert (x.dtype, ids.dtype, weights.dtype) == (torch.bfloat16, torch.int32, torch.float32)


def m_grouped_fp8_gemm_nt_contiguous(
    a, b, d, grouped_layout, recipe=None, compiled_dims="nk", disable_ue8m0_cast=False
):
    (codes, scale), (weights, scales) = a, b
    assert disable_ue8m0_cast
    assert grouped_layout.dtype == torch.int32
    assert len(codes) == len(d) == len(grouped_layout)
    assert len(codes) % BLOCK == 0
    rows = codes.float() * spread(scale[:, None], 1, codes.shape[1])[:, 0]
    w = wide(weights, scales)
    for start in range(0, len(codes), BLOCK):
        experts = grouped_layout[start : start + BLOCK]
        real = experts >= 0
        assert len(experts[real].unique()) <= 1, "a block of 128 rows belongs to one expert"
        if real.any():
            d[start : start + BLOCK][real] = (rows[start : start + BLOCK][real] @ w[experts[real][0]].T).bfloat16()


class MoEActivation(Enum):
    SILU = "silu"
    SWIGLUOAI = "swigluoai"


def vllm_fused_experts(
    hidden_states, w1, w2, topk_weights, topk_ids, inplace=False, activation=MoEActivation.SILU,
    apply_router_weight_on_input=False, global_num_experts=-1, expert_map=None, quant_config=None,
):  # fmt: skip
    check_tokens(hidden_states, topk_ids, topk_weights)
    assert not inplace
    assert global_num_experts == len(w1)
    config = quant_config or SimpleNamespace(w1_bias=None, w2_bias=None, scales=None)
    if config.scales is not None:
        w1, w2 = wide(w1, config.scales[0]), wide(w2, config.scales[1])

    def activate(rows):
        if activation is MoEActivation.SWIGLUOAI:
            return swiglu(rows, interleaved=True, alpha=1.702, limit=7.0)
        return swiglu(rows)

    biases = (config.w1_bias, config.w2_bias)
    return layer(hidden_states, topk_ids, topk_weights, w1, w2, *biases, activate, apply_router_weight_on_input)


def biased_moe_quant_config(w1_bias, w2_bias):
    return SimpleNamespace(w1_bias=w1_bias, w2_bias=w2_bias, scales=None)


def fp8_w8a8_moe_quant_config(
    w1_scale, w2_scale, a1_scale=None, a2_scale=None, w1_bias=None, w2_bias=None, per_act_token_quant=False,
    per_out_ch_quant=False, block_shape=None,
):  # fmt: skip
    assert not per_act_token_quant or block_shape is None
    assert per_act_token_quant == per_out_ch_quant == (w1_scale.shape[-1] == 1)
    return SimpleNamespace(w1_bias=w1_bias, w2_bias=w2_bias, scales=(w1_scale, w2_scale))


class StandardTopKOutput(NamedTuple):
    topk_weights: torch.Tensor
    topk_ids: torch.Tensor
    router_logits: torch.Tensor


PUBLISHED = []


def sglang_fused_experts(
    hidden_states, w1, w2, topk_output, moe_runner_config, b1=None, b2=None, use_fp8_w8a8=False, use_int8_w8a8=False,
    use_int8_w8a16=False, use_int4_w4a16=False, per_channel_quant=False, w1_scale=None, w2_scale=None, w1_zp=None,
    w2_zp=None, a1_scale=None, a2_scale=None, block_shape=None,
):  # fmt: skip
    assert PUBLISHED, "the server arguments come first"
    weights, ids, _ = topk_output
    check_tokens(hidden_states, ids, weights)
    config = moe_runner_config
    assert not config.inplace
    if use_fp8_w8a8:
        w1, w2 = wide(w1, w1_scale), wide(w2, w2_scale)
    options = {"interleaved": config.gate_up_interleaved and config.gemm1_alpha is not None}
    options |= {"alpha": config.gemm1_alpha, "limit": config.gemm1_clamp_limit}
    activate = lambda rows: swiglu(rows, **options)  # noqa: E731
    return layer(hidden_states, ids, weights, w1, w2, b1, b2, activate, config.apply_router_weight_on_input)


def cutlass_fused_moe(
    input, token_selected_experts, token_final_scales, fc1_expert_weights, fc2_expert_weights, output_dtype,
    quant_scales, fc1_expert_biases=None, fc2_expert_biases=None, input_sf=None, swiglu_alpha=None, swiglu_beta=None,
    swiglu_limit=None, use_deepseek_fp8_block_scale=False,
):  # fmt: skip
    check_tokens(input, token_selected_experts, token_final_scales)
    assert output_dtype == torch.bfloat16
    w1, w2 = fc1_expert_weights, fc2_expert_weights
    if use_deepseek_fp8_block_scale:
        w1, w2 = (wide(w, scale) for w, scale in zip((w1, w2), quant_scales, strict=True))
    options = {}
    if swiglu_alpha is not None:
        assert swiglu_alpha.shape == (len(w1),)
        assert float(swiglu_beta[0]) == 1
        options = {"alpha": float(swiglu_alpha[0]), "limit": float(swiglu_limit[0])}
    activate = lambda rows: swiglu(rows, up_first=True, **options)  # noqa: E731
    ids, weights, biases = token_selected_experts, token_final_scales, (fc1_expert_biases, fc2_expert_biases)
    return [layer(input, ids, weights, w1, w2, *biases, activate)]


class GroupedLinear(torch.nn.Module):
    def __init__(self, num_gemms, in_features, out_features, bias=True, params_dtype=None, device="cuda"):
        super().__init__()
        self.num_gemms, self.use_bias = num_gemms, bias
        for e in range(num_gemms):
            shape = {"weight": (out_features, in_features), "bias": (out_features,)}
            for name in ("weight", "bias") if bias else ("weight",):
                empty = torch.empty(shape[name], dtype=params_dtype, device=device)
                setattr(self, f"{name}{e}", torch.nn.Parameter(empty))

    def forward(self, inp, m_splits):
        assert len(m_splits) == self.num_gemms
        outputs = []
        for e, rows in enumerate(inp.split(m_splits)):
            bias = getattr(self, f"bias{e}") if self.use_bias else None
            outputs.append(torch.nn.functional.linear(rows, getattr(self, f"weight{e}"), bias))
        return torch.cat(outputs)


def fast_encode(data, critial_data, is_postscore=True):
    num_experts, ids, places, gates, capacity = critial_data
    rows = torch.zeros(num_experts * capacity, data.shape[1])
    for expert, place, gate in zip(ids, places, gates, strict=True):
        assert expert.dtype == place.dtype == torch.int32
        rows[expert * capacity + place] = data.float() * (1 if is_postscore else gate[:, None])
    return rows.to(data.dtype).view(num_experts, capacity, -1)


def fast_decode(data, critial_data, is_postscore=True):
    _, ids, places, gates, capacity = critial_data
    rows = data.float().flatten(0, 1)
    picked = [
        rows[expert * capacity + place] * (gate[:, None] if is_postscore else 1)
        for expert, place, gate in zip(ids, places, gates, strict=True)
    ]
    return sum(picked).to(data.dtype)


def matmul_ogs(
    x, w, bias, routing_data=None, gather_indx=None, scatter_indx=None, precision_config=None, betas=None, gammas=None,
    out_alpha=None, y=None, fused_comm=None, fused_activation=None,
):  # fmt: skip
    """Rows of each expert times w [E, K, N]; MXFP4 weights come as (codes [E, K/2, N], scales [E, K/32, N])."""
    if precision_config.weight_scale is not None:
        codes, scales = (part.transpose(1, 2).contiguous() for part in (w, precision_config.weight_scale))
        shape = (*codes.shape[:2], 2 * codes.shape[2])
        w = FORMATS["mxfp4"].decode(Quantised("mxfp4", shape, codes, scales, None, "floor", "saturate")).transpose(1, 2)
    assert w.stride(-2) == 1, "K runs fastest"
    assert bias is None or bias.dtype == torch.float32
    order, top_k = routing_data.expt_hist, routing_data.n_expts_act
    ends = order.cumsum(0).tolist()
    rows = x if gather_indx is None else x[gather_indx.src_indx.long() // top_k]
    out = torch.cat([
        rows[end - count : end].float() @ w[e].float() + (0 if bias is None else bias[e])
        for e, (end, count) in enumerate(zip(ends, order.tolist(), strict=True))
    ])  # fmt: skip
    if gammas is not None:
        out = out * gammas[:, None]
    if fused_activation is not None:
        alpha, limit = fused_activation.fn_args
        assert fused_activation.specs.reduction_n == 2
        out = swiglu(out, interleaved=True, alpha=alpha, limit=limit)
    if scatter_indx is not None:
        assert torch.equal(scatter_indx.src_indx[scatter_indx.dst_indx.long()], torch.arange(len(out)).int())
        out = torch.zeros(len(out) // top_k, out.shape[1]).index_add_(0, scatter_indx.dst_indx.long() // top_k, out)
    return out.to(x.dtype)


def record_of(*names):
    """A class like the peer's dataclasses: fields by position or name, others None."""

    class Record(SimpleNamespace):
        def __init__(self, *values, **more):
            super().__init__(**(dict.fromkeys(names) | dict(zip(names, values, strict=False)) | more))

    return Record


VLLM, SGLANG = "vllm.model_executor.layers.fused_moe", "sglang.srt.layers.moe"
MODULES = {
    "deep_gemm": {"m_grouped_fp8_gemm_nt_contiguous": m_grouped_fp8_gemm_nt_contiguous},
    "triton_kernels": {},
    "triton_kernels.matmul_ogs": {
        "matmul_ogs": matmul_ogs,
        "FnSpecs": record_of("name", "fn", "fn_arg_names", "fn_arg_do_not_specialize", "reduction_n"),
        "FusedActivation": record_of("specs", "fn_args"),
        "FlexCtx": record_of("lhs_data", "rhs_data"),
        "PrecisionConfig": record_of("flex_ctx", "weight_scale"),
        "RoutingData": record_of("gate_scal", "expt_hist", "n_expts_tot", "n_expts_act", "expt_data"),
        "GatherIndx": record_of("src_indx", "dst_indx"),
        "ScatterIndx": record_of("src_indx", "dst_indx"),
    },
    "triton_kernels.numerics": {"InFlexData": SimpleNamespace},
    "triton_kernels.swiglu": {"swiglu_fn": None},
    "triton_kernels.tensor": {
        "FP4": "fp4",
        "make_ragged_tensor_metadata": lambda counts, num_rows: counts,
        "wrap_torch_tensor": lambda tensor, dtype=None: tensor,
        "convert_layout": lambda tensor, layout: tensor,
    },
    "triton_kernels.tensor_details.layout": {
        "make_default_matmul_mxfp4_w_layout": lambda mx_axis: (None, {}),
        "make_default_matmul_mxfp4_w_scale_layout": lambda mx_axis, num_warps: (None, {}),
    },
    "vllm": {},
    "vllm._custom_ops": {},
    f"{VLLM}.fused_moe": {"fused_experts": vllm_fused_experts},
    f"{VLLM}.activation": {"MoEActivation": MoEActivation},
    f"{VLLM}.config": {
        "biased_moe_quant_config": biased_moe_quant_config,
        "fp8_w8a8_moe_quant_config": fp8_w8a8_moe_quant_config,
    },
    "sglang": {},
    "sglang.srt.server_args": {
        "ServerArgs": SimpleNamespace,
        "set_global_server_args_for_scheduler": PUBLISHED.append,
    },
    f"{SGLANG}.moe_runner.triton_utils.fused_moe": {"fused_experts": sglang_fused_experts},
    f"{SGLANG}.moe_runner.base": {"MoeRunnerConfig": SimpleNamespace},
    f"{SGLANG}.topk": {"StandardTopKOutput": StandardTopKOutput},
    "flashinfer": {},
    "flashinfer.fused_moe": {"cutlass_fused_moe": cutlass_fused_moe},
    "transformer_engine": {},
    "transformer_engine.pytorch": {"GroupedLinear": GroupedLinear},
    "tutel": {},
    "tutel.impls.fast_dispatch": {"fast_encode": fast_encode, "fast_decode": fast_decode},
}


def install(monkeypatch):
    """Put every stand-in where an import finds it."""
    for name, contents in MODULES.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
