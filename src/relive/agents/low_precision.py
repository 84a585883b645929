"""Products of a layer in bfloat16, which has half of float32's bytes, its range, and a mantissa of 8 bits.

Products take most of the time of an update. On processors that multiply bfloat16, a product of 256 x 256 x 256 takes
half as long as in float32. On other processors it may take longer.

A layer's inputs, weights and gradients are rounded before a product. The product adds up in float32 and is rounded at
its end. Everything else stays float32: parameters, moments, biases, and the numbers between layers.

A layer that is narrow on one side stays float32. Its products are cheap, and the outputs of the last layer are values
whose small differences matter.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

NARROWEST = 32


def is_wide(weight: Tensor) -> bool:
    """Whether a layer with these weights [out, in] is wide enough for bfloat16 to pay."""
    return min(weight.shape) >= NARROWEST


@final
class LowPrecisionLayer:
    """The products of one layer for a fixed number of rows. The gradients belong to the last `forward`."""

    def __init__(self, weight: Tensor, num_rows: int) -> None:
        """Makes the buffers.

        Args:
            weight: float32 [out, in]. Each `forward` reads the weights again.
            num_rows: rows of the inputs.
        """
        num_outputs, num_inputs = weight.shape
        self._weight = weight

        def made(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.bfloat16, device=weight.device)

        self._low_weight, self._weight_gradient = made(num_outputs, num_inputs), made(num_outputs, num_inputs)
        self._inputs, self._input_gradient = made(num_rows, num_inputs), made(num_rows, num_inputs)
        self._outputs, self._gradient = made(num_rows, num_outputs), made(num_rows, num_outputs)

    def forward(self, inputs: Tensor, bias: Tensor, out: Tensor) -> Tensor:
        """Computes out = inputs W^T + bias, all float32."""
        self._low_weight.copy_(self._weight)
        self._inputs.copy_(inputs)
        torch.mm(self._inputs, self._low_weight.t(), out=self._outputs)
        return out.copy_(self._outputs).add_(bias)

    def weight_gradient(self, gradient: Tensor, out: Tensor) -> None:
        """Computes out = gradient^T inputs, with the inputs of the last `forward`."""
        self._gradient.copy_(gradient)
        torch.mm(self._gradient.t(), self._inputs, out=self._weight_gradient)
        out.copy_(self._weight_gradient)

    def input_gradient(self, gradient: Tensor, out: Tensor) -> Tensor:
        """Computes out = gradient W, with the W of the last `forward`. The gradient may have fewer rows."""
        rows = len(gradient)
        low = self._gradient[:rows].copy_(gradient)
        torch.mm(low, self._low_weight, out=self._input_gradient[:rows])
        return out.copy_(self._input_gradient[:rows])
