"""The network of images (Mnih et al. 2015): convolutions on autograd, over the same flat parameters as a perceptron.

`leaves_of`, `convolutions` and `perceptron` are for other networks on autograd, too.

Here the time goes into the convolutions, not into calls, so autograd writes the gradients; the optimizer, the clip and
the target's step stay one call each over one vector.
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
    """The parameters as autograd takes them: where they learn, `backward` adds to the gradients of `parameters`."""
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
    """Features [B, NUM_FEATURES] of frames uint8 [B, stack, 84, 84], by the layers `conv.*`; none is below 0."""
    planes = frames.to(torch.float32) * (1.0 / 255.0)
    for layer, stride in enumerate(_STRIDES):
        planes = torch.relu(conv2d(planes, leaves[f"conv.{layer}.weight"], leaves[f"conv.{layer}.bias"], stride))
    return planes.flatten(1)


def perceptron(leaves: Mapping[str, Tensor], name: str, inputs: Tensor) -> Tensor:
    """The layers `name.0`, `name.1`, ... of inputs [..., n]: relu between them, none at the end."""
    layer = 0
    while True:
        inputs = linear(inputs, leaves[f"{name}.{layer}.weight"], leaves[f"{name}.{layer}.bias"])
        layer += 1
        if f"{name}.{layer}.weight" not in leaves:
            return inputs
        inputs = torch.relu(inputs)


@final
class ConvNetwork:
    """Convolutions `conv.*` over uint8 frames [B, stack, 84, 84], then the perceptron `name.*`: a `mlp.Network`."""

    def __init__(self, parameters: FlatParameters, name: str, *, learns: bool) -> None:
        """learns: whether `backward` will be called; a target network's is not, and keeps nothing for it."""
        self._parameters = parameters
        self._name = name
        self._learns = learns
        self._leaves = leaves_of(parameters, learns=learns)
        self._outputs: Tensor | None = None

    @staticmethod
    def shapes(name: str, stack: int, sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the parameters; sizes: of the perceptron, without its inputs."""
        return {**convolution_shapes(stack), **MLP.shapes(name, (NUM_FEATURES, *sizes))}

    def forward(self, inputs: Tensor) -> Tensor:
        """See Network."""
        with torch.set_grad_enabled(self._learns):
            self._outputs = perceptron(self._leaves, self._name, convolutions(self._leaves, inputs))
        return self._outputs.detach()

    def backward(self, gradient: Tensor) -> None:
        """See Network."""
        assert self._outputs is not None, "forward comes first"
        self._parameters.gradients.zero_()  # autograd adds to what lies there
        self._outputs.backward(gradient)  # type: ignore[no-untyped-call]
        self._outputs = None
