"""What a rank's training step is made of and what it leaves.

T tokens of the rank, K top-k, H hidden, E experts, B rows of a buffer after dispatch, C (slot, weight) columns of a
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
from workbench.run.exchange import Exchange
from workbench.run.inputs import RawWeights
from workbench.run.layer import RankLayer


@dataclass(frozen=True)
class TrainChunk:
    """Tokens that travel together: ``rows`` of the rank's. ``plan`` is None where no row travels.

    ``choices_BC`` int64: which of its token's K choices a received pair is, -1 for none.
    """

    rows: slice
    exchange: Exchange
    plan: RankPlan | None
    choices_BC: Tensor


@dataclass(frozen=True)
class TrainLayer:
    """All that a rank needs before the clock starts. ``router``: keyword arguments of ``router_weights``.

    ``upstream_TH`` bf16 is the gradient of the layer's output. ``chunks`` hold all tokens, in order; with ``overlaps``
    they travel while others are computed, and with ``shared_beside`` the shared expert is computed meanwhile.
    ``two_batch``: each chunk is a micro-batch with a gate and a shared expert of its own.
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
    transport: TorchTransport
    chunks: tuple[TrainChunk, ...] = ()
    overlaps: bool = False
    shared_beside: bool = False
    two_batch: bool = False

    @property
    def encodes(self) -> bool:
        """Whether anything is quantised."""
        recipe = self.recipe
        return {recipe.weights, recipe.activations, recipe.gradients} != {"bf16"}


@dataclass
class Gradients:
    """What a step leaves: gradients of the tokens [T, H], the gate's matrix, the slots' experts, the shared expert."""

    x_TH: Tensor | None = None
    gate_HE: Tensor | None = None
    experts: ExpertGrads | None = None
    shared: ExpertGrads | None = None
