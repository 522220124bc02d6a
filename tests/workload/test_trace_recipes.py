"""The recipe of docs/traces.md for transformers, run as it stands there on small models with random weights."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.workload.factory import make_cell
from workbench.spec.router import Recorded
from workbench.workload.tensor_files import READERS
from workbench.workload.trace_forms import COUNTS
from workbench.workload.traffic import route_all

DOCS = Path(__file__).resolve().parents[2] / "docs" / "traces.md"


@pytest.fixture(scope="module")
def record_routes():
    found = re.search(r"<!-- recorder -->\n```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    namespace: dict = {}
    exec(compile(found[1], str(DOCS), "exec"), namespace)
    return namespace["record_routes"]


def small_model(kind: str):
    import transformers

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 3,
             "num_attention_heads": 2, "num_key_value_heads": 2, "num_experts_per_tok": 2}  # fmt: skip
    if kind == "qwen3_moe":
        config = transformers.Qwen3MoeConfig(**sizes, moe_intermediate_size=16, num_experts=8, head_dim=16)
        return transformers.Qwen3MoeForCausalLM(config), 3
    config = transformers.DeepseekV3Config(
        **sizes, moe_intermediate_size=16, n_routed_experts=8, n_group=2, topk_group=1, first_k_dense_replace=1,
        kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
    )  # fmt: skip
    return transformers.DeepseekV3ForCausalLM(config), 2


@pytest.mark.parametrize(
    ("kind", "router"),
    [
        ("qwen3_moe", {"kind": "softmax_topk"}),
        ("deepseek_v3", {"kind": "sigmoid_group", "num_groups": 2, "topk_group": 1, "routed_scaling": 2.5}),
    ],
)
def test_recorded_ids_are_those_that_our_router_takes_from_the_recorded_logits(kind, router, record_routes, tmp_path):
    torch.manual_seed(0)
    model, layers = small_model(kind)
    for name, module in model.named_modules():
        if name.endswith("gate"):
            torch.nn.init.normal_(module.weight)
    batches = [{"input_ids": torch.randint(0, 64, (1, count))} for count in (5, 11)]
    path = tmp_path / "routes.npz"
    record_routes(model, batches, path)
    routed = {}
    for form in ("ids", "logits"):
        skew = {"kind": "trace", "path": str(path), "form": form}
        cell = make_cell(tokens=4, experts=8, top_k=2, ranks=4, skew=skew, router=router)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        cell = cell.model_copy(update={"trace_digest": digest} | ({"router": Recorded()} if form == "ids" else {}))
        routed[form] = [route_all(cell, layer=layer) for layer in range(layers)]
    for kept, decided in zip(routed["ids"], routed["logits"], strict=True):
        np.testing.assert_array_equal(np.sort(kept.ids, axis=2), np.sort(decided.ids, axis=2))
        weights = [np.take_along_axis(t.weights, np.argsort(t.ids, axis=2), axis=2) for t in (kept, decided)]
        if kind == "qwen3_moe":  # its own does not divide by the sum here, ours is told to by norm_topk
            weights = [w / w.sum(axis=2, keepdims=True) for w in weights]
        np.testing.assert_allclose(*weights, rtol=1e-3)
    assert len({t.ids.tobytes() for t in routed["ids"]}) == layers


def test_the_page_names_every_form_that_is_read():
    text = DOCS.read_text()
    for name in (*COUNTS, *READERS, "ids", "weights", "logits", "topk_ids_of_layer", "experts", "expert"):
        assert f"`{name}`" in text or f"`{name} " in text, name
