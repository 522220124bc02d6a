"""Routers: from the gate's logits to experts and weights. One file a router; ``ROUTERS`` names them.

Every router is called ``route(logits_TE, *, top_k, bias=None, <its options>) -> Routing``; ``random`` also needs
``seed``. See ``base`` for the meaning of ``bias`` and of bad logits, ``select`` for ties.
"""

from kernels.routing.base import Route, Routing
from kernels.routing.random_topk import random_topk
from kernels.routing.select import top_k_ids
from kernels.routing.sigmoid_group import sigmoid_group
from kernels.routing.sigmoid_topk import sigmoid_topk
from kernels.routing.softmax_group import softmax_group
from kernels.routing.softmax_topk import softmax_topk
from kernels.routing.switch import expert_capacity, switch
from kernels.routing.topk_softmax import topk_softmax

ROUTERS: dict[str, Route] = {
    "softmax_topk": softmax_topk,
    "topk_softmax": topk_softmax,
    "sigmoid_topk": sigmoid_topk,
    "sigmoid_group": sigmoid_group,
    "softmax_group": softmax_group,
    "switch": switch,
    "random": random_topk,
}

__all__ = ["ROUTERS", "Route", "Routing", "expert_capacity", "top_k_ids"]
