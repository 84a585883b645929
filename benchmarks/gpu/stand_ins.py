"""Stand-ins for the packages of relive.train that only draw and log: matplotlib and TensorBoard.

The machine of a GPU may lack both. A run then writes no curve.png, no profile.svg and no tensorboard/. Learning, its
checkpoints, profile.json and result.json do not depend on them.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

NAMES = {
    "matplotlib": ("matplotlib", "matplotlib.backends", "matplotlib.backends.backend_agg", "matplotlib.figure")
    + ("matplotlib.backends.backend_svg",),
    "tensorboard": ("torch.utils.tensorboard", "torch.utils.tensorboard.summary"),
}
# Modules of relive that only draw with a package.
DRAWING = {"matplotlib": ("relive.train.watching.curve",), "tensorboard": ()}


class Nothing:
    """Every attribute of it, and the result of every call of it, is itself. It has no items."""

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Nothing:
        return self

    def __iter__(self) -> Any:
        return iter(())


class _Module(ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


def stand_in() -> list[str]:
    """Puts a stand-in in the place of each package that cannot be imported. Returns the names of these packages."""
    missing = []
    for package, modules in NAMES.items():
        try:
            for module in modules:
                importlib.import_module(module)
        except ImportError:
            missing.append(package)
            sys.modules.update({module: _Module(module) for module in (*modules, *DRAWING[package])})
    return missing
