"""Routers: from the gate's logits to experts and weights. One file a router; ``ROUTERS`` names them.

Every router is called ``route(logits_TE, *, top_k, bias=None, backend="auto", <its options>) -> Routing``; ``random``
also needs ``seed`` and ``hash`` ``token_ids``. See ``base`` for the meaning of ``bias`` and of bad logits, ``select``
for ties, ``capacity`` for what drops tokens behind any router, ``losses`` for what trains one.
"""

from kernels.routing.base import Route, Routing
from kernels.routing.batch_prioritized import batch_prioritized
from kernels.routing.capacity import expert_capacity, limit_capacity, slot_limit
from kernels.routing.cosine import cosine
from kernels.routing.expert_choice import expert_choice
from kernels.routing.hash_experts import hash_experts
from kernels.routing.noisy_topk import noisy_topk
from kernels.routing.random_topk import random_topk
from kernels.routing.select import top_k_ids
from kernels.routing.sigmoid_group import sigmoid_group
from kernels.routing.sigmoid_topk import sigmoid_topk
from kernels.routing.softmax_group import softmax_group
from kernels.routing.softmax_topk import softmax_topk
from kernels.routing.switch import switch
from kernels.routing.topk_softmax import topk_softmax

ROUTERS: dict[str, Route] = {
    "softmax_topk": softmax_topk,
    "topk_softmax": topk_softmax,
    "sigmoid_topk": sigmoid_topk,
    "sigmoid_group": sigmoid_group,
    "softmax_group": softmax_group,
    "switch": switch,
    "noisy_topk": noisy_topk,
    "batch_prioritized": batch_prioritized,
    "expert_choice": expert_choice,
    "cosine": cosine,
    "hash": hash_experts,
    "random": random_topk,
}

__all__ = ["ROUTERS", "Route", "Routing", "expert_capacity", "limit_capacity", "slot_limit", "top_k_ids"]
