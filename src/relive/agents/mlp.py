"""Fast updates of small networks: parameters in one vector, a perceptron with a written-out backward, and Adam.

With autograd, allocation, and one optimizer call for each tensor, the update of a small network spends as much time on
these as on its matrix products. This module avoids them:

- A network's parameters are views of one vector. Its gradients are views of a second vector.
- `forward` and `backward` write into buffers that are made once, for a fixed number of rows.
- The optimizer, the clip of the gradient's norm, and the target's step are one call each, over the whole vector.

Gradients agree with those of autograd to 1e-5 (tests/train/test_mlp.py).

  forward   h_0 = x,  z_l = h_{l-1} W_l^T + b_l,  h_l = max(z_l, 0),  output z_L
  backward  g_L given;  dW_l = g_l^T h_{l-1},  db_l = sum over rows of g_l,  g_{l-1} = (g_l W_l) * [h_{l-1} > 0]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.adam import adam

from relive.agents.low_precision import LowPrecisionLayer, is_wide
from relive.errors import InvalidConfig

_ALIGNMENT = 16  # float32 values in a cache line
# If one side of a product is so narrow, one order of the factors is several times slower than the other (oneMKL 2024).
_NARROW = range(2, 24)
Shapes = Mapping[str, tuple[int, ...]]


def device_of(name: str) -> torch.device:
    """Returns the device of this name.

    Raises:
        InvalidConfig: torch knows no such device.
    """
    try:
        device = torch.device(name)
        if device.type != "cuda" or (device.index or 0) < torch.cuda.device_count():
            return device
        raise InvalidConfig("device", f"one of {torch.cuda.device_count()} CUDA devices here, or 'cpu'", name)
    except (RuntimeError, TypeError) as error:
        raise InvalidConfig("device", "one that torch knows, such as 'cpu' or 'cuda:0'", name) from error


@final
class FlatParameters:
    """Named float32 tensors that are views of one vector, and their gradients, views of another.

    - values, gradients: the vectors [n]. The zeros between tensors stay zero.
    - value, gradient: the views by name.
    - with_spare: the gradients and a few more values after them, so that one reduction can take both.
    """

    def __init__(self, shapes: Shapes, device: torch.device, spare: int = 0) -> None:
        """Makes parameters of zeros.

        Args:
            shapes: shapes by name.
            device: the device.
            spare: number of float32 values after the gradients, see `with_spare`. Default: 0.
        """
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self._starts: dict[str, int] = {}
        total = 0
        for name, shape in self.shapes.items():
            self._starts[name] = total
            total += -(-math.prod(shape) // _ALIGNMENT) * _ALIGNMENT
        self.values = torch.zeros(total, device=device)
        self.with_spare = torch.zeros(total + spare, device=device)
        self.gradients = self.with_spare[:total]
        self.value = self._views(self.values)
        self.gradient = self._views(self.gradients)

    def _views(self, vector: Tensor) -> dict[str, Tensor]:
        return {
            name: vector[start : start + math.prod(self.shapes[name])].view(self.shapes[name])
            for name, start in self._starts.items()
        }

    def offsets(self) -> dict[str, int]:
        """Returns the first position of each tensor in the vector, by name, in the vector's order."""
        return dict(self._starts)

    def initialise(self, generator: torch.Generator) -> None:
        """Draws initial values as torch does: uniform within 1 / sqrt(inputs of the layer), on the host."""
        for name, view in self.value.items():
            layer = name.rpartition(".")[0]
            bound = 1.0 / math.sqrt(math.prod(self.shapes[f"{layer}.weight"][1:]))
            view.copy_(torch.empty(view.shape).uniform_(-bound, bound, generator=generator))

    def copy(self) -> FlatParameters:
        """Returns new parameters with the same names and values."""
        other = FlatParameters(self.shapes, self.values.device)
        other.values.copy_(self.values)
        return other

    def follow(self, source: FlatParameters, rate: float) -> None:
        """Computes values += rate * (values of the source - values)."""
        self.values.lerp_(source.values, rate)

    def on_host(self) -> dict[str, NDArray[np.float32]]:
        """Returns copies of all tensors by name, in host memory."""
        flat = self.values.to("cpu", copy=True).numpy()
        return {
            name: flat[start : start + math.prod(self.shapes[name])].reshape(self.shapes[name])
            for name, start in self._starts.items()
        }

    def tensors(self) -> tuple[Tensor, ...]:
        """Returns the tensors that updates change: the object's own memory."""
        return (self.values,)

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of the values by name."""
        return {name: view.clone() for name, view in self.value.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over values that `state_dict` returned.

        Raises:
            InvalidConfig: the state has other names or shapes.
        """
        shapes = {name: tuple(value.shape) for name, value in state.items()}
        if shapes != self.shapes:
            raise InvalidConfig("parameters of a checkpoint", f"names and shapes {self.shapes}", str(shapes))
        for name, view in self.value.items():
            view.copy_(state[name])


class Network(Protocol):
    """A network over FlatParameters, for batches of a fixed number of rows B."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns outputs [B, n]. The next call overwrites them. The inputs must not change until `backward`."""
        ...

    def backward(self, gradient: Tensor) -> None:
        """Writes the gradients of the parameters for the last `forward`.

        Args:
            gradient: gradient of the outputs [B, n].
        """
        ...


@final
class MLP:
    """A perceptron with relu between layers and none at the end. A `Network`.

    The layers are `name.0.weight` [out, in], `name.0.bias` [out], `name.1.weight`, ...
    """

    def __init__(self, parameters: FlatParameters, name: str, num_rows: int, *, low: bool = False) -> None:
        """Makes a network over these parameters, and its buffers.

        Args:
            parameters: parameters with the names and shapes that `MLP.shapes` returns.
            name: name of the layers.
            num_rows: B of every batch.
            low: whether the products of wide layers use bfloat16, see `relive.agents.low_precision`. Default: False.
        """
        self._weights: list[Tensor] = []
        self._transposed: list[Tensor] = []
        self._biases: list[Tensor] = []
        self._weight_gradients: list[Tensor] = []
        self._bias_gradients: list[Tensor] = []
        device = parameters.values.device
        while (layer := f"{name}.{len(self._weights)}.weight") in parameters.value:
            bias = layer.replace(".weight", ".bias")
            self._weights.append(parameters.value[layer])
            self._transposed.append(parameters.value[layer].t())
            self._biases.append(parameters.value[bias])
            self._weight_gradients.append(parameters.gradient[layer])
            self._bias_gradients.append(parameters.gradient[bias])
        self._outputs = [torch.zeros(num_rows, weight.shape[0], device=device) for weight in self._weights]
        self._input_gradients = [torch.zeros(num_rows, weight.shape[1], device=device) for weight in self._weights]
        # The first layer's input and weight gradients are computed transposed if that order is faster.
        self._narrow = self._weights[0].shape[1] in _NARROW
        self._weight_gradient_t = torch.zeros(*reversed(self._weights[0].shape), device=device)
        self._input_gradient_t = torch.zeros(self._weights[0].shape[1], num_rows, device=device)
        self._low = [
            LowPrecisionLayer(weight, num_rows) if low and is_wide(weight) else None for weight in self._weights
        ]
        self._gathered = [torch.zeros_like(output) for output in self._outputs[:-1]]
        self._inputs = torch.zeros(0, device=device)

    @staticmethod
    def shapes(name: str, sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Returns names and shapes of the parameters of layers sizes[0] -> sizes[1] -> ..."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (num_inputs, num_outputs) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
            shapes[f"{name}.{layer}.weight"] = (num_outputs, num_inputs)
            shapes[f"{name}.{layer}.bias"] = (num_outputs,)
        return shapes

    @property
    def outputs(self) -> Tensor:
        """The outputs of the last `forward`, [B, sizes[-1]]."""
        return self._outputs[-1]

    def forward(self, inputs: Tensor) -> Tensor:
        """See Network. inputs: float32 [B, sizes[0]]."""
        self._inputs = hidden = inputs
        last = len(self._weights) - 1
        for layer, (bias, weight, output) in enumerate(zip(self._biases, self._transposed, self._outputs, strict=True)):
            low = self._low[layer]
            if low is None:
                hidden = torch.addmm(bias, hidden, weight, out=output)
            else:
                hidden = low.forward(hidden, bias, output)
            if layer < last:
                hidden.relu_()
        return hidden

    def backward(self, gradient: Tensor) -> None:
        """See Network."""
        for layer in range(len(self._weights) - 1, -1, -1):
            inputs = self._outputs[layer - 1] if layer else self._inputs
            self._to_weights(layer, gradient, inputs)
            torch.sum(gradient, 0, out=self._bias_gradients[layer])
            if layer:
                gradient = self._through(layer, gradient, self._outputs[layer - 1])

    def _to_weights(self, layer: int, gradient: Tensor, inputs: Tensor) -> None:
        low, out = self._low[layer], self._weight_gradients[layer]
        if low is not None:
            low.weight_gradient(gradient, out)
        elif layer == 0 and self._narrow:
            torch.mm(inputs.t(), gradient, out=self._weight_gradient_t)
            out.copy_(self._weight_gradient_t.t())
        else:
            torch.mm(gradient.t(), inputs, out=out)

    def input_gradient(self, gradient: Tensor, first: int = 0) -> Tensor:
        """Computes the gradient of the inputs for the last `forward`. The parameters' gradients do not change.

        Args:
            gradient: gradient of the outputs [B, n].
            first: the first input whose gradient is needed. Default: 0.

        Returns:
            The gradient [B, sizes[0] - first] of the inputs from `first` on. The next call overwrites it.
        """
        for layer in range(len(self._weights) - 1, 0, -1):
            gradient = self._through(layer, gradient, self._outputs[layer - 1])
        return self._to_inputs(gradient, first)

    def input_gradient_of(self, rows: Tensor, gradient: Tensor, first: int = 0) -> Tensor:
        """Does the same for some rows only.

        Args:
            rows: int64 [m].
            gradient: gradient of the outputs of these rows [m, n].
            first: the first input whose gradient is needed. Default: 0.

        Returns:
            The gradient [m, sizes[0] - first]. The next call overwrites it.
        """
        for layer in range(len(self._weights) - 1, 0, -1):
            hidden = self._gathered[layer - 1][: len(rows)]
            torch.index_select(self._outputs[layer - 1], 0, rows, out=hidden)
            gradient = self._through(layer, gradient, hidden)
        return self._to_inputs(gradient, first)

    def _to_inputs(self, gradient: Tensor, first: int) -> Tensor:
        weight, num_rows = self._weights[0][:, first:], len(gradient)
        if weight.shape[1] in _NARROW:
            return torch.mm(weight.t(), gradient.t(), out=self._input_gradient_t[first:, :num_rows]).t()
        return torch.mm(gradient, weight, out=self._input_gradients[0][:num_rows, first:])

    def _through(self, layer: int, gradient: Tensor, hidden: Tensor) -> Tensor:
        """Returns the gradient before the relu below `layer`. `hidden` is that relu's output, and gives the rows."""
        low, below = self._low[layer], self._input_gradients[layer][: len(hidden)]
        if low is None:
            torch.mm(gradient, self._weights[layer], out=below)
        else:
            low.input_gradient(gradient, below)
        return torch.ops.aten.threshold_backward.grad_input(  # type: ignore[no-any-return]
            below, hidden, 0.0, grad_input=below
        )


@final
class Adam:
    """Adam (Kingma and Ba 2015) over all parameters in one call, after a clip of their gradient's norm."""

    def __init__(self, parameters: FlatParameters, *, epsilon: float = 1e-8, max_gradient_norm: float = 0.0) -> None:
        """Makes moments of zeros.

        Args:
            parameters: the parameters.
            epsilon: epsilon of Adam. Default: 1e-8.
            max_gradient_norm: a longer gradient is shortened to this norm. 0 clips nothing. Default: 0.
        """
        self._parameters = parameters
        self.epsilon = epsilon
        self.max_gradient_norm = max_gradient_norm
        self._mean = torch.zeros_like(parameters.values)
        self._square = torch.zeros_like(parameters.values)
        self._step = torch.zeros((), device=parameters.values.device)
        self._combine: Callable[[Tensor], None] | None = None

    @property
    def stepped_tensors(self) -> tuple[Tensor, ...]:
        """The tensors that a step changes: the parameters' vector, both moments, the number of steps."""
        return self._parameters.values, self._mean, self._square, self._step

    def combine_by(self, combine: Callable[[Tensor], None]) -> None:
        """Makes every step begin with `combine(gradients)`, which changes the vector in place. See Replicas."""
        self._combine = combine

    def step(self, learning_rate: float) -> None:
        """Makes one step along the gradients of the parameters."""
        parameters = self._parameters
        if self._combine is not None:
            self._combine(parameters.gradients)
        if self.max_gradient_norm > 0.0:
            norm = float(torch.linalg.vector_norm(parameters.gradients))
            if norm > self.max_gradient_norm:
                parameters.gradients.mul_(self.max_gradient_norm / (norm + 1e-6))
        adam(
            [parameters.values],
            [parameters.gradients],
            [self._mean],
            [self._square],
            [],
            [self._step],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=learning_rate,
            weight_decay=0.0,
            eps=self.epsilon,
            maximize=False,
        )

    def step_along(self, gradients: Tensor, learning_rate: float) -> None:
        """Makes one step along these gradients [n], which replace those of the parameters."""
        self._parameters.gradients.copy_(gradients)
        self.step(learning_rate)

    def tensors(self) -> tuple[Tensor, ...]:
        """Returns the tensors that updates change, without the parameters: the object's own memory."""
        return self._mean, self._square, self._step

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of both moments and of the number of steps."""
        return {"mean": self._mean.clone(), "square": self._square.clone(), "step": self._step.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over a state that `state_dict` returned.

        Raises:
            InvalidConfig: the state has other shapes.
        """
        for name, mine in (("mean", self._mean), ("square", self._square), ("step", self._step)):
            if tuple(state[name].shape) != tuple(mine.shape):
                raise InvalidConfig("optimizer of a checkpoint", f"shape {tuple(mine.shape)}", tuple(state[name].shape))
            mine.copy_(state[name])
