"""The exchanges of a backward pass, each the transpose of a forward one, over the same plan.

Combine adds up copies of a token, so its backward hands the token's gradient to every copy: a dispatch. Dispatch copies
a token, so its backward adds up the gradients of the copies: a combine. Counts are known from the forward pass and no
routing rides along. Gradients travel in bf16; sums are float32 in the order of the plan.

T tokens of a rank, n rows of its last buffer, H hidden, K top-k.
"""

import numpy as np
import torch
from torch import Tensor

from workbench.comm.execute import combine
from workbench.comm.oracle import origins
from workbench.comm.payload import decode_rows, encode_rows
from workbench.comm.plan import DispatchPlan
from workbench.comm.rank_plan import RankPlan
from workbench.comm.transport import TorchTransport

WIRE_DTYPE = "bf16"


def combine_backward(plan: RankPlan, transport: TorchTransport, grads_TH: Tensor) -> Tensor:
    """bf16 [n, H]: for every row of the last buffer the gradient of the token that it was added into."""
    buffer = encode_rows(grads_TH, WIRE_DTYPE)
    for hop in plan.hops:
        buffer = transport.carry(hop.pick(buffer), hop)
    return decode_rows(buffer, grads_TH.shape[1], WIRE_DTYPE)


def dispatch_backward(
    plan: RankPlan, transport: TorchTransport, grads_nH: Tensor, weight_grads_nK: Tensor
) -> tuple[Tensor, Tensor]:
    """float32 gradients of the tokens [T, H] and of their K combine weights [T, K].

    ``weight_grads_nK`` holds a pair's gradient in the column of its k, so that copies of a token add up; it travels
    behind the row.
    """
    rows = torch.cat([grads_nH.float(), weight_grads_nK.float()], dim=1)
    grads = combine(plan, transport, rows, dtype=WIRE_DTYPE)
    return grads[:, : grads_nH.shape[1]], grads[:, grads_nH.shape[1] :]


def pair_choices(plan: DispatchPlan, rank: int, slots_RTK: np.ndarray, local_slots_nW: np.ndarray) -> np.ndarray:
    """int64 [n, W]: which of its token's K choices each received pair is, -1 for no pair.

    ``slots_RTK`` are the global slots that the choices go to, ``local_slots_nW`` those received (-1 = none). Choices of
    one token with the same slot, which strategy none makes, stand in their order.
    """
    source, token, _ = origins(plan, rank)
    wanted_nK = slots_RTK[source, token]
    received_nW = np.where(local_slots_nW >= 0, local_slots_nW + rank * plan.slots_per_rank, -1)
    same = (wanted_nK[:, None, :] == received_nW[:, :, None]) & (received_nW >= 0)[:, :, None]
    same &= _earlier_equals(wanted_nK)[:, None, :] == _earlier_equals(received_nW)[:, :, None]
    return np.where(same.any(-1), same.argmax(-1), -1)


def _earlier_equals(values_nW: np.ndarray) -> np.ndarray:
    """How many values before each in its row equal it: [[4, 7, 4, 4]] gives [[0, 0, 1, 2]]."""
    equal = values_nW[:, :, None] == values_nW[:, None, :]
    return np.tril(equal, -1).sum(-1)


def by_choice(values_nW: Tensor, choices_nW: Tensor, *, top_k: int) -> Tensor:
    """[n, K] of values [n, W], each in the column of its choice (int64, -1 = left out); others 0.

    Values [[5, 7]] with choices [[2, -1]] and top_k 3 give [[0, 0, 5]].
    """
    wide = values_nW.new_zeros(values_nW.shape[0], top_k + 1)
    return wide.scatter_(1, choices_nW.remainder(top_k + 1), values_nW)[:, :top_k]
