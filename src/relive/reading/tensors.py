"""Arrays of numpy or of torch. torch is loaded when it is needed and not before."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from relive.errors import MissingPackage

__all__ = ["beside", "on_host", "to_tensor", "torch_itself"]


def on_host(array: Any) -> Any:
    """The array, or a copy of the tensor on the CPU."""
    return array.cpu() if hasattr(array, "cpu") else array


def beside(rows: Any, array: Any) -> Any:
    """Row numbers or offsets in the kind of the array: as a tensor on its device if the array is a tensor."""
    if not isinstance(rows, np.ndarray) or not hasattr(array, "cpu"):
        return rows  # arrays of other libraries, such as jax, take those of numpy
    return to_tensor(rows, array.device)


def to_tensor(array: Any, device: Any) -> Any:
    """The array as a tensor on the device, copied only if it is on another device."""
    torch = torch_itself()
    tensor = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
    if tensor.device == device or (device.type == tensor.device.type and device.index is None):
        return tensor
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def torch_itself() -> Any:
    """The module torch. Raises MissingPackage."""
    try:
        return importlib.import_module("torch")  # imported here, because the library itself needs numpy only
    except ModuleNotFoundError as problem:
        raise MissingPackage("to_torch", problem.name or "torch", "pip install torch") from None
