"""The network of images (Mnih et al. 2015): convolutions on autograd, over the same flat parameters as a perceptron.

Here the time goes into the convolutions, not into calls, so autograd writes the gradients; the optimizer, the clip and
the target's step stay one call each over one vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import conv2d, linear

from relive.agents.mlp import MLP, FlatParameters

_STRIDES = (4, 2, 1)
_NUM_FEATURES = 64 * 7 * 7


@final
class ConvNetwork:
    """Convolutions `conv.*` over uint8 frames [B, stack, 84, 84], then the perceptron `name.*`: a `mlp.Network`."""

    def __init__(self, parameters: FlatParameters, name: str, *, learns: bool) -> None:
        """learns: whether `backward` will be called; a target network's is not, and keeps nothing for it."""
        self._parameters = parameters
        self._name = name
        self._learns = learns
        self._leaves = {key: view.detach().requires_grad_(learns) for key, view in parameters.value.items()}
        for key, leaf in self._leaves.items():
            leaf.grad = parameters.gradient[key] if learns else None
        self._outputs: Tensor | None = None

    @staticmethod
    def shapes(name: str, stack: int, sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the parameters; sizes: of the perceptron, without its inputs."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, shape in enumerate(((32, stack, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3))):
            shapes[f"conv.{layer}.weight"], shapes[f"conv.{layer}.bias"] = shape, shape[:1]
        return {**shapes, **MLP.shapes(name, (_NUM_FEATURES, *sizes))}

    def forward(self, inputs: Tensor) -> Tensor:
        """See Network."""
        with torch.set_grad_enabled(self._learns):
            self._outputs = self._run(inputs)
        return self._outputs.detach()

    def _run(self, inputs: Tensor) -> Tensor:
        leaves = self._leaves
        planes = inputs.to(torch.float32) * (1.0 / 255.0)
        for layer, stride in enumerate(_STRIDES):
            planes = torch.relu(conv2d(planes, leaves[f"conv.{layer}.weight"], leaves[f"conv.{layer}.bias"], stride))
        hidden, layer = planes.flatten(1), 0
        while True:
            hidden = linear(hidden, leaves[f"{self._name}.{layer}.weight"], leaves[f"{self._name}.{layer}.bias"])
            layer += 1
            if f"{self._name}.{layer}.weight" not in leaves:
                return hidden
            hidden = torch.relu(hidden)

    def backward(self, gradient: Tensor) -> None:
        """See Network."""
        assert self._outputs is not None, "forward comes first"
        self._parameters.gradients.zero_()  # autograd adds to what lies there
        self._outputs.backward(gradient)  # type: ignore[no-untyped-call]
        self._outputs = None
