"""Routers against the gates of transformers' own models, on random weights; and its load balancing loss.

transformers takes a folder ``kernels`` on the import path for Hugging Face's package, and finds that it is not there.
"""

import os

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
from transformers import DeepseekV3Config, GptOssConfig, MixtralConfig, Qwen3MoeConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter, load_balancing_loss_func
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from kernels.routing import ROUTERS, Routing
from kernels.routing.losses import switch_loss

HIDDEN, TOKENS = 64, 500
SIZES = {"hidden_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4}


def gate_of(cls, config):
    """A gate with random weights, its correction bias too."""
    gate, generator = cls(config), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in (*gate.parameters(), *gate.buffers()):
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * (0.1 if tensor.dim() == 1 else 0.3))
    return gate


def theirs(gate) -> tuple[torch.Tensor, Routing]:
    """Logits, and ids with their weights in descending order of choice."""
    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        logits, weights, ids = gate(x)
    return logits, Routing(ids, weights)


def assert_equal(ours: Routing, theirs: Routing) -> None:
    """The same experts with the same weights, whatever their order in a row."""
    mine, other = ours.ids.long().sort(1), theirs.ids.long().sort(1)
    assert torch.equal(mine.values, other.values)
    torch.testing.assert_close(ours.weights.gather(1, mine.indices), theirs.weights.gather(1, other.indices))


@pytest.mark.parametrize(
    ("experts", "groups", "kept", "norm", "scaling"), [(256, 8, 4, True, 2.5), (64, 1, 1, True, 2.827)]
)
def test_deepseek_v3(experts, groups, kept, norm, scaling):
    config = DeepseekV3Config(
        n_routed_experts=experts,
        num_experts_per_tok=8,
        n_group=groups,
        topk_group=kept,
        norm_topk_prob=norm,
        routed_scaling_factor=scaling,
        **SIZES,
    )
    gate = gate_of(DeepseekV3TopkRouter, config)
    logits, expected = theirs(gate)
    options = {"num_groups": groups, "topk_group": kept, "norm_topk": norm, "routed_scaling": scaling}
    bias = gate.e_score_correction_bias
    assert_equal(ROUTERS["sigmoid_group"](logits, top_k=8, bias=bias, **options), expected)
    unbiased = ROUTERS["sigmoid_group"](logits, top_k=8, **options)
    assert not torch.equal(unbiased.ids.long().sort(1).values, expected.ids.sort(1).values)


@pytest.mark.parametrize("norm", [True, False])
def test_qwen3_moe(norm):
    config = Qwen3MoeConfig(num_experts=128, num_experts_per_tok=8, norm_topk_prob=norm, **SIZES)
    logits, expected = theirs(gate_of(Qwen3MoeTopKRouter, config))
    assert_equal(ROUTERS["softmax_topk"](logits, top_k=8, norm_topk=norm), expected)


def test_gpt_oss():
    """Its gate's bias is part of the logits."""
    config = GptOssConfig(num_local_experts=32, num_experts_per_tok=4, **SIZES)
    logits, expected = theirs(gate_of(GptOssTopKRouter, config))
    assert_equal(ROUTERS["topk_softmax"](logits, top_k=4), expected)


def test_mixtral():
    config = MixtralConfig(num_local_experts=8, num_experts_per_tok=2, **SIZES)
    logits, expected = theirs(gate_of(MixtralTopKRouter, config))
    assert_equal(ROUTERS["softmax_topk"](logits, top_k=2), expected)


@pytest.mark.parametrize("top_k", [1, 2, 6])
def test_switch_loss_is_theirs_over_k(top_k):
    logits = torch.randn(300, 16, generator=torch.Generator().manual_seed(3)) + torch.arange(16) * 0.2
    ids = ROUTERS["softmax_topk"](logits, top_k=top_k).ids
    expected = load_balancing_loss_func((logits,), num_experts=16, top_k=top_k) / top_k
    torch.testing.assert_close(switch_loss(logits.softmax(1), ids), expected)
