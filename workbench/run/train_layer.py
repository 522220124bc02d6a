"""What a rank's training step is made of and what it leaves.

T tokens of the rank, K top-k, H hidden, E experts, B rows of the buffer after dispatch, C (slot, weight) columns of a
buffer row.
"""

from dataclasses import dataclass

from torch import Tensor

from kernels.activation import Activation
from kernels.backward import TrainRecipe
from kernels.backward.experts import ExpertGrads
from kernels.scaling import Scaling
from workbench.comm.rank_plan import RankPlan
from workbench.comm.transport import TorchTransport
from workbench.run.inputs import RawWeights
from workbench.run.layer import RankLayer


@dataclass(frozen=True)
class TrainLayer:
    """All that a rank needs before the clock starts. ``plan`` is None where no row travels.

    ``choices_BC`` int64: which of its token's K choices a received pair is, -1 for none. ``router``: keyword arguments
    of ``router_weights``. ``upstream_TH`` bf16 is the gradient of the layer's output.
    """

    layer: RankLayer
    weights: RawWeights
    shared_weights: RawWeights | None
    activation: Activation
    recipe: TrainRecipe
    scaling: Scaling
    router: dict
    top_k: int
    upstream_TH: Tensor
    choices_BC: Tensor
    plan: RankPlan | None
    transport: TorchTransport


@dataclass
class Gradients:
    """What a step leaves: gradients of the tokens [T, H], the gate's matrix, the slots' experts, the shared expert."""

    x_TH: Tensor | None = None
    gate_HE: Tensor | None = None
    experts: ExpertGrads | None = None
    shared: ExpertGrads | None = None
