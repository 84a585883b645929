"""The network for images (Mnih et al. 2015): convolutions with autograd, over flat parameters as a perceptron has.

The convolutions take most of the time and the calls take little, so autograd writes the gradients. The optimizer, the
clip of the gradient's norm and the target's step are one call each over one vector, as for a perceptron.

`leaves_of`, `convolutions` and `perceptron` also serve other networks with autograd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import conv2d, linear

from relive.agents.mlp import MLP, FlatParameters

_STRIDES = (4, 2, 1)
NUM_FEATURES = 64 * 7 * 7


def leaves_of(parameters: FlatParameters, *, learns: bool) -> dict[str, Tensor]:
    """Returns the parameters as leaves of autograd, by name.

    Args:
        parameters: the parameters.
        learns: whether `backward` adds to the gradients of `parameters`.
    """
    leaves = {key: view.detach().requires_grad_(learns) for key, view in parameters.value.items()}
    for key, leaf in leaves.items():
        leaf.grad = parameters.gradient[key] if learns else None
    return leaves


def convolution_shapes(stack: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters of `convolutions`."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, shape in enumerate(((32, stack, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3))):
        shapes[f"conv.{layer}.weight"], shapes[f"conv.{layer}.bias"] = shape, shape[:1]
    return shapes


def convolutions(leaves: Mapping[str, Tensor], frames: Tensor) -> Tensor:
    """Applies the layers `conv.*`.

    Args:
        leaves: parameters by name.
        frames: uint8 [B, stack, 84, 84].

    Returns:
        Features [B, NUM_FEATURES], none below 0.
    """
    planes = frames.to(torch.float32) * (1.0 / 255.0)
    for layer, stride in enumerate(_STRIDES):
        planes = torch.relu(conv2d(planes, leaves[f"conv.{layer}.weight"], leaves[f"conv.{layer}.bias"], stride))
    return planes.flatten(1)


def perceptron(leaves: Mapping[str, Tensor], name: str, inputs: Tensor) -> Tensor:
    """Applies the layers `name.0`, `name.1`, ... to inputs [..., n], with relu between layers and none at the end."""
    layer = 0
    while True:
        inputs = linear(inputs, leaves[f"{name}.{layer}.weight"], leaves[f"{name}.{layer}.bias"])
        layer += 1
        if f"{name}.{layer}.weight" not in leaves:
            return inputs
        inputs = torch.relu(inputs)


@final
class ConvNetwork:
    """Convolutions `conv.*` over frames uint8 [B, stack, 84, 84], then the perceptron `name.*`. A `mlp.Network`."""

    def __init__(self, parameters: FlatParameters, name: str, *, learns: bool) -> None:
        """Makes a network over these parameters.

        Args:
            parameters: parameters with the names and shapes that `shapes` returns.
            name: name of the perceptron's layers.
            learns: whether the network has a `backward`. A target network has none, and keeps nothing for it.
        """
        self._parameters = parameters
        self._name = name
        self._learns = learns
        self._leaves = leaves_of(parameters, learns=learns)
        self._outputs: Tensor | None = None

    @staticmethod
    def shapes(name: str, stack: int, sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Returns names and shapes of the parameters.

        Args:
            name: name of the perceptron's layers.
            stack: frames in a stack.
            sizes: sizes of the perceptron's layers, without its inputs.
        """
        return {**convolution_shapes(stack), **MLP.shapes(name, (NUM_FEATURES, *sizes))}

    def forward(self, inputs: Tensor) -> Tensor:
        """See Network."""
        with torch.set_grad_enabled(self._learns):
            self._outputs = perceptron(self._leaves, self._name, convolutions(self._leaves, inputs))
        return self._outputs.detach()

    def backward(self, gradient: Tensor) -> None:
        """See Network."""
        assert self._outputs is not None, "forward comes first"
        self._parameters.gradients.zero_()  # autograd adds to the old gradients
        self._outputs.backward(gradient)  # type: ignore[no-untyped-call]
        self._outputs = None
