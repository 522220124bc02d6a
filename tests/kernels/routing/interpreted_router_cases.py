"""Runs the fused router in triton's interpreter beside its torch twin and prints what differs, as JSON.

Started by test_fused_router.py with TRITON_INTERPRET=1, which has to be set before triton is imported.
"""

import json

import torch

from kernels.routing import ROUTERS

INF, NAN = float("inf"), float("nan")
DEEPSEEK = {"num_groups": 8, "topk_group": 4, "routed_scaling": 2.5}
CASES = {
    "softmax_topk": ("softmax_topk", 37, 128, 8, {}),
    "not normalised": ("softmax_topk", 9, 60, 4, {"norm_topk": False}),
    "softmax with bias": ("softmax_topk", 9, 16, 3, {"bias": True}),
    "topk_softmax": ("topk_softmax", 21, 32, 4, {"bias": True, "routed_scaling": 0.5}),
    "sigmoid_topk": ("sigmoid_topk", 5, 16, 1, {}),
    "sigmoid_topk normalised": ("sigmoid_topk", 5, 17, 5, {"norm_topk": True, "bias": True}),
    "deepseek-v3": ("sigmoid_group", 19, 256, 8, DEEPSEEK | {"bias": True}),
    "kimi-k2": ("sigmoid_group", 7, 384, 8, {"bias": True, "routed_scaling": 2.827}),
    "512 experts": ("sigmoid_group", 3, 512, 10, {"bias": True}),
    "groups of one": ("sigmoid_group", 6, 5, 2, {"num_groups": 5, "topk_group": 3}),
    "odd groups": ("sigmoid_group", 11, 36, 5, {"num_groups": 3, "topk_group": 2, "bias": True}),
    "deepseek-v2": ("softmax_group", 12, 160, 6, {"num_groups": 8, "topk_group": 3, "routed_scaling": 16.0}),
    "softmax_group with bias": ("softmax_group", 12, 40, 6, {"num_groups": 4, "topk_group": 2, "bias": True}),
    "one expert": ("softmax_topk", 4, 1, 1, {}),
    "all experts": ("softmax_topk", 4, 6, 6, {}),
    "no tokens": ("softmax_topk", 0, 8, 2, {}),
    "switch": ("switch", 30, 8, 2, {"capacity_factor": 0.7}),
    "batch_prioritized": ("batch_prioritized", 30, 8, 2, {"capacity_factor": 1.0, "norm_topk": True}),
    "cosine": ("cosine", 8, 24, 3, {}),
    "noisy_topk": ("noisy_topk", 8, 24, 3, {}),
}


def compare(logits: torch.Tensor, name: str, top_k: int, options: dict) -> dict:
    """Whether the ids are equal, and the largest relative difference of the weights."""
    options = dict(options)
    if options.pop("bias", False):
        options["bias"] = torch.randn(logits.shape[1], generator=torch.Generator().manual_seed(9)) * 0.3 - 0.5
    ours, twin = (ROUTERS[name](logits, top_k=top_k, backend=backend, **options) for backend in ("triton", "torch"))
    difference = (ours.weights - twin.weights).abs() / twin.weights.abs().clamp(min=1e-30)
    return {
        "same_ids": torch.equal(ours.ids, twin.ids),
        "finite": bool(ours.weights.isfinite().all()),
        "difference": float(difference.max()) if difference.numel() else 0.0,
    }


def plain(name: str, rows: int, experts: int, top_k: int, options: dict) -> dict:
    return compare(torch.randn(rows, experts, generator=torch.Generator().manual_seed(rows)), name, top_k, options)


def tied(name: str, rows: int, experts: int, top_k: int, options: dict) -> dict:
    """Logits of few values, so that ties decide."""
    generator = torch.Generator().manual_seed(rows + 1)
    return compare(torch.randint(-1, 2, (rows, experts), generator=generator).float(), name, top_k, options)


def spoilt(name: str, rows: int, experts: int, top_k: int, options: dict) -> dict:
    """A row of NaN, single NaN and infinities, both zeros."""
    logits = torch.randn(rows + 4, experts, generator=torch.Generator().manual_seed(rows + 2))
    logits[0] = NAN
    logits[1, ::2] = NAN
    logits[2], logits[2, ::3], logits[2, 1::3], logits[2, 1:2] = -1.0, -INF, 0.0, -0.0
    logits[3, -1] = INF
    return compare(logits, name, top_k, options)


def gradient() -> float:
    """Of the weights to the logits, through the kernel's ids, against the twin's."""
    logits = torch.randn(6, 16, generator=torch.Generator().manual_seed(4))
    logits[2] = NAN
    upstream = torch.randn(6, 4, generator=torch.Generator().manual_seed(5))
    found = []
    for backend in ("triton", "torch"):
        leaf = logits.clone().requires_grad_()
        ROUTERS["sigmoid_group"](leaf, top_k=4, num_groups=4, topk_group=2, backend=backend).weights.backward(upstream)
        found.append(leaf.grad)
    assert found[1].isfinite().all()
    return float((found[0] - found[1]).abs().max())


def strided() -> bool:
    """Columns of a wider matrix, and bf16."""
    wide = torch.randn(10, 40, generator=torch.Generator().manual_seed(6)).bfloat16()
    options = {"top_k": 3}
    one, other = wide[:, :24], wide[:, :24].float().contiguous()
    ours, twin = (
        ROUTERS["softmax_topk"](x, backend=backend, **options) for x, backend in ((one, "triton"), (other, "torch"))
    )
    transposed = ROUTERS["softmax_topk"](wide.t(), backend="triton", **options)
    expected = ROUTERS["softmax_topk"](wide.t(), backend="torch", **options)
    return torch.equal(ours.ids, twin.ids) and torch.equal(transposed.ids, expected.ids)


def refused() -> list[str]:
    said = []
    for logits, top_k in ((torch.zeros(2, 513), 2), (torch.zeros(2, 8).double(), 2), (torch.zeros(2, 100), 65)):
        try:
            ROUTERS["softmax_topk"](logits, top_k=top_k, backend="triton")
        except ValueError as error:
            said.append(str(error))
    return said


def main() -> None:
    print(
        json.dumps(
            {
                "plain": {case: plain(*arguments) for case, arguments in CASES.items()},
                "tied": {case: tied(*arguments) for case, arguments in CASES.items()},
                "spoilt": {case: spoilt(*arguments) for case, arguments in CASES.items()},
                "gradient": gradient(),
                "strided": strided(),
                "refused": refused(),
            }
        )
    )


if __name__ == "__main__":
    main()
