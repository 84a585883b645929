"""The learner's speed: parameters in one vector, a perceptron with its backward written out, and Adam over the vector.

An update of a small network spends as much on autograd, on allocation and on one optimizer call a tensor as on its
matrix products. Here a network's parameters are views of one vector, its gradients views of another; forward and
backward write into buffers made once, for a fixed number of rows; the optimizer, the clip of the gradient's norm and
the target's step are one call each over the whole vector. Gradients agree with autograd's to 1e-5
(tests/train/test_mlp.py).

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

_ALIGNMENT = 16  # float32 values in a line of memory
# Products of which one side is so narrow are several times slower one way round than the other, with oneMKL 2024.
_NARROW = range(2, 24)
Shapes = Mapping[str, tuple[int, ...]]


def device_of(name: str) -> torch.device:
    """The device of this name. Raises InvalidConfig where torch knows none."""
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

    values, gradients: the vectors [n]. value, gradient: the views by name. Between tensors lie zeros that stay zero.
    with_spare: the gradients, and behind them room for a few more, so that one reduction takes all of them.
    """

    def __init__(self, shapes: Shapes, device: torch.device, spare: int = 0) -> None:
        """spare: so many float32 values lie behind the gradients, see `with_spare`."""
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
        """Where each tensor begins in the vector, in its order."""
        return dict(self._starts)

    def initialise(self, generator: torch.Generator) -> None:
        """torch's own: weights and biases uniform within 1 / sqrt(inputs of the layer), drawn on the host."""
        for name, view in self.value.items():
            layer = name.rpartition(".")[0]
            bound = 1.0 / math.sqrt(math.prod(self.shapes[f"{layer}.weight"][1:]))
            view.copy_(torch.empty(view.shape).uniform_(-bound, bound, generator=generator))

    def copy(self) -> FlatParameters:
        """Others of the same names and values."""
        other = FlatParameters(self.shapes, self.values.device)
        other.values.copy_(self.values)
        return other

    def follow(self, source: FlatParameters, rate: float) -> None:
        """values += rate * (source's - values)."""
        self.values.lerp_(source.values, rate)

    def on_host(self) -> dict[str, NDArray[np.float32]]:
        """Copies of all, by name."""
        flat = self.values.to("cpu", copy=True).numpy()
        return {
            name: flat[start : start + math.prod(self.shapes[name])].reshape(self.shapes[name])
            for name, start in self._starts.items()
        }

    def tensors(self) -> tuple[Tensor, ...]:
        """What a state consists of, as it lies in memory."""
        return (self.values,)

    def state_dict(self) -> dict[str, Any]:
        """The values by name."""
        return {name: view.clone() for name, view in self.value.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave. InvalidConfig where names or shapes are others."""
        shapes = {name: tuple(value.shape) for name, value in state.items()}
        if shapes != self.shapes:
            raise InvalidConfig("parameters of a checkpoint", f"names and shapes {self.shapes}", str(shapes))
        for name, view in self.value.items():
            view.copy_(state[name])


class Network(Protocol):
    """A network over FlatParameters, for batches of a fixed number of rows."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs [B, n], overwritten by the next call; inputs must stay as they are until `backward`."""
        ...

    def backward(self, gradient: Tensor) -> None:
        """Writes the parameters' gradients, those of the last `forward`, from the outputs' gradient [B, n]."""
        ...


@final
class MLP:
    """A perceptron: relu between layers, none at the end. Layers are `name.0.weight` [out, in], `name.0.bias`, ..."""

    def __init__(self, parameters: FlatParameters, name: str, num_rows: int, *, low: bool = False) -> None:
        """num_rows: B of every batch. parameters: with the names and shapes that `MLP.shapes` gives.

        low: the products of wide layers are of bfloat16, see `relive.agents.low_precision`.
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
        # Transposed, where that is the quicker way round: the first layer's input and weight gradients.
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
        """Names and shapes of the parameters of layers sizes[0] -> sizes[1] -> ..."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (num_inputs, num_outputs) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
            shapes[f"{name}.{layer}.weight"] = (num_outputs, num_inputs)
            shapes[f"{name}.{layer}.bias"] = (num_outputs,)
        return shapes

    @property
    def outputs(self) -> Tensor:
        """Of the last `forward`, [B, sizes[-1]]."""
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
        """The gradient [B, sizes[0] - first] of the inputs from `first` on, from the outputs' [B, n].

        The parameters' gradients are left alone. Overwritten by the next call.
        """
        for layer in range(len(self._weights) - 1, 0, -1):
            gradient = self._through(layer, gradient, self._outputs[layer - 1])
        return self._to_inputs(gradient, first)

    def input_gradient_of(self, rows: Tensor, gradient: Tensor, first: int = 0) -> Tensor:
        """The same of some rows alone: rows int64 [m], gradient [m, n]; [m, sizes[0] - first]."""
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
        """The gradient before the relu under `layer`, which gave `hidden`, of so many rows as that has."""
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
        """max_gradient_norm: 0 clips nothing."""
        self._parameters = parameters
        self.epsilon = epsilon
        self.max_gradient_norm = max_gradient_norm
        self._mean = torch.zeros_like(parameters.values)
        self._square = torch.zeros_like(parameters.values)
        self._step = torch.zeros((), device=parameters.values.device)
        self._combine: Callable[[Tensor], None] | None = None

    @property
    def stepped_tensors(self) -> tuple[Tensor, ...]:
        """What a step changes: the parameters' vector, both moments, the number of steps."""
        return self._parameters.values, self._mean, self._square, self._step

    def combine_by(self, combine: Callable[[Tensor], None]) -> None:
        """Every step begins with `combine(gradients)`, which changes the vector in place: see Replicas."""
        self._combine = combine

    def step(self, learning_rate: float) -> None:
        """One step along the gradients that lie in the parameters."""
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
        """One step along these gradients [n], in place of those that lie in the parameters."""
        self._parameters.gradients.copy_(gradients)
        self.step(learning_rate)

    def tensors(self) -> tuple[Tensor, ...]:
        """What a state consists of, as it lies in memory."""
        return self._mean, self._square, self._step

    def state_dict(self) -> dict[str, Any]:
        """Both moments and the number of steps."""
        return {"mean": self._mean.clone(), "square": self._square.clone(), "step": self._step.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        for name, mine in (("mean", self._mean), ("square", self._square), ("step", self._step)):
            if tuple(state[name].shape) != tuple(mine.shape):
                raise InvalidConfig("optimizer of a checkpoint", f"shape {tuple(mine.shape)}", tuple(state[name].shape))
            mine.copy_(state[name])
