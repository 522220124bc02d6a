"""The layer's backward: gradients of experts, biases, router weights and tokens, in bf16 and FP8.

``train_layer`` is the whole layer under autograd; ``experts`` and ``products`` hold its parts for a harness that times
them apart; ``recipe`` says which formats forward and backward multiply in.
"""

from kernels.backward.layer import train_layer
from kernels.backward.recipe import TRAIN_RECIPES, TrainRecipe, train_recipe
from kernels.backward.router import router_weights

__all__ = ["TRAIN_RECIPES", "TrainRecipe", "router_weights", "train_layer", "train_recipe"]
