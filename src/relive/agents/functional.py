"""Updates as functions of tensors, for a compiler: the parts that all agents share.

A `Functional` is an agent's update over the agent's own memory. A run may call it in place of `Agent.update` at any
batch, and the other way round. Each agent's file contains both: the hand-written update and, below it, the same update
as a function of tensors. The function is written for a compiler: networks are plain expressions, autograd gives the
gradients (tracing turns them into products), Adam works on the whole vector.

Each way checks the other. Tests compare them, and they agree to float error. `relive.train.learners.update_choice`
compares them again on the machine of the run before the run uses a compiled update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from relive.agents.agent import Items
from relive.agents.low_precision import is_wide
from relive.agents.mlp import Adam, FlatParameters

Named = dict[str, Tensor]
Step = Callable[..., tuple[Tensor, ...]]


def source_files() -> list[Path]:
    """Returns the files that a compiled update depends on: all files of this folder, in a fixed order."""
    return sorted(Path(__file__).parent.glob("*.py"))


@final
@dataclass(frozen=True)
class Functional:
    """One update as three functions: load, step, finish.

    Args:
        steps: functions by name, each traceable: (*state, *inputs) -> (*new state, *outputs).
        which: returns the name of the step that the next update needs.
        state: the agent's tensors. An update copies the new state into them.
        load: takes over a batch and returns the inputs, the same tensors each time.
        finish: takes the outputs and returns new priorities, as Agent.update does.
    """

    steps: Mapping[str, Step]
    which: Callable[[], str]
    state: tuple[Tensor, ...]
    load: Callable[[Items], tuple[Tensor, ...]]
    finish: Callable[[tuple[Tensor, ...]], NDArray[np.float64] | None]

    def update(self, batch: Items, call: Callable[[str, tuple[Tensor, ...]], tuple[Tensor, ...]]) -> Any:
        """Does what Agent.update does.

        Args:
            batch: the batch.
            call: makes the step: `call(name, arguments)` changes the state in place and returns the outputs.

        Returns:
            New priorities float64 [B], or None if the items have no priorities.
        """
        with torch.no_grad():
            inputs = self.load(batch)
            return self.finish(call(self.which(), (*self.state, *inputs)))

    def call(self, name: str, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Makes a step uncompiled, for tests and for tracing."""
        results = self.steps[name](*arguments)
        for old, new in zip(self.state, results, strict=False):
            old.copy_(new)
        return results[len(self.state) :]


@final
class Flat:
    """The layout of FlatParameters, for vectors that are traced."""

    def __init__(self, parameters: FlatParameters) -> None:
        self._shapes, self._size = parameters.shapes, len(parameters.values)
        self._offsets = parameters.offsets()

    def named(self, vector: Tensor) -> Named:
        """Returns the tensors by name, as views of the vector."""
        return {
            name: vector[start : start + math.prod(self._shapes[name])].view(self._shapes[name])
            for name, start in self._offsets.items()
        }

    def vector(self, named: Named) -> Tensor:
        """Returns the vector of these tensors, with the zeros between them."""
        parts: list[Tensor] = []
        ends = [*list(self._offsets.values())[1:], self._size]
        for (name, start), end in zip(self._offsets.items(), ends, strict=True):
            parts.append(named[name].reshape(-1))
            between = end - start - math.prod(self._shapes[name])
            if between:
                parts.append(parts[-1].new_zeros(between))
        return torch.cat(parts)


def network(named: Named, name: str, inputs: Tensor, low: bool) -> Tensor:
    """MLP.forward as a function. low: wide layers use bfloat16."""
    layer, hidden = 0, inputs
    while (key := f"{name}.{layer}.weight") in named:
        if layer:
            hidden = torch.relu(hidden)
        weight, bias = named[key], named[f"{name}.{layer}.bias"]
        if low and is_wide(weight):
            hidden = torch.mm(hidden.bfloat16(), weight.bfloat16().t()).float() + bias
        else:
            hidden = torch.addmm(bias, hidden, weight.t())
        layer += 1
    return hidden


def stepped(gradient: Tensor, state: tuple[Tensor, ...], rate: Tensor, optimizer: Adam) -> tuple[Tensor, ...]:
    """Adam.step as a function: returns the new (values, mean, square, step) of `Adam.stepped_tensors`."""
    values, mean, square, step = state
    if optimizer.max_gradient_norm > 0.0:
        norm = torch.linalg.vector_norm(gradient)
        gradient = gradient * torch.clamp(optimizer.max_gradient_norm / (norm + 1e-6), max=1.0)
    step = step + 1.0
    mean = mean + 0.1 * (gradient - mean)
    square = 0.999 * square + 0.001 * gradient * gradient
    unbiased = (square / (1.0 - torch.pow(0.999, step))).sqrt() + optimizer.epsilon
    return values - rate / (1.0 - torch.pow(0.9, step)) * mean / unbiased, mean, square, step


def followed(target: Tensor, source: Tensor, rate: float) -> Tensor:
    """FlatParameters.follow as a function: returns the new target."""
    return target + rate * (source - target)
