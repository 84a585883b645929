"""Products of a layer in bfloat16: half of float32's bytes and its range, 8 bits of its mantissa.

A layer's inputs, weights and gradients are rounded on the way into a product, which adds up in float32 and is rounded
once more on its way out. All else stays float32: parameters, moments, biases, what lies between layers. That is where
the time goes: on processors that multiply bfloat16 a product of 256 x 256 x 256 takes half as long; on others it may
take longer. Layers that are narrow on one side stay as they are: their products are cheap, and the last one's outputs
are values whose differences are learnt from.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

NARROWEST = 32


def is_wide(weight: Tensor) -> bool:
    """Whether a layer of these weights [out, in] is worth it."""
    return min(weight.shape) >= NARROWEST


@final
class LowPrecisionLayer:
    """The products of one layer for a fixed number of rows. `forward` comes first; the others are of its inputs."""

    def __init__(self, weight: Tensor, num_rows: int) -> None:
        """weight: [out, in], float32, read anew by each `forward`."""
        num_outputs, num_inputs = weight.shape
        self._weight = weight

        def made(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.bfloat16, device=weight.device)

        self._low_weight, self._weight_gradient = made(num_outputs, num_inputs), made(num_outputs, num_inputs)
        self._inputs, self._input_gradient = made(num_rows, num_inputs), made(num_rows, num_inputs)
        self._outputs, self._gradient = made(num_rows, num_outputs), made(num_rows, num_outputs)

    def forward(self, inputs: Tensor, bias: Tensor, out: Tensor) -> Tensor:
        """out = inputs W^T + bias, all float32."""
        self._low_weight.copy_(self._weight)
        self._inputs.copy_(inputs)
        torch.mm(self._inputs, self._low_weight.t(), out=self._outputs)
        return out.copy_(self._outputs).add_(bias)

    def weight_gradient(self, gradient: Tensor, out: Tensor) -> None:
        """out = gradient^T inputs, those of the last `forward`."""
        self._gradient.copy_(gradient)
        torch.mm(self._gradient.t(), self._inputs, out=self._weight_gradient)
        out.copy_(self._weight_gradient)

    def input_gradient(self, gradient: Tensor, out: Tensor) -> Tensor:
        """out = gradient W, W as the last `forward` read it; also of fewer rows."""
        rows = len(gradient)
        low = self._gradient[:rows].copy_(gradient)
        torch.mm(low, self._low_weight, out=self._input_gradient[:rows])
        return out.copy_(self._input_gradient[:rows])
