"""One module a library, each with the same functions over its own buffer; see `open_hopper` in any of them.

A contestant offers, for a buffer that is filled before it is handed out:
    append()              one more step (or one step of each lane)
    sample(num_items)     a gathered batch with its weights, where the library has them -> (keys, anything)
    update(keys, p)       new priorities for these keys; absent where the library is uniform
"""

from __future__ import annotations

import importlib
from types import ModuleType

MODULES = {
    "relive": "relive_table",
    "relive shared": "relive_table",
    "relive uniform": "relive_table",
    "SB3 uniform": "sb3_buffer",
    "Tianshou": "tianshou_buffer",
    "cpprb": "cpprb_buffer",
    "relive service": "service_table",
    "Reverb": "reverb_table",
    "relive tiered": "relive_table",
    "relive fleet": "nodes_relive",
    "Ray objects": "nodes_ray",
    "RayReplayBuffer": "nodes_torchrl",
    "Reverb, other node": "nodes_reverb",
    "memory map": "memory_map",
    "memory map, advised": "memory_map",
}
ENVIRONMENTS = {
    "SB3 uniform": "sb3",
    "Tianshou": "tianshou",
    "cpprb": "cpprb",
    "Reverb": "reverb",
    "Reverb, other node": "reverb",
    "RayReplayBuffer": "torchrl",
}


def load(contestant: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.contestants.{MODULES[contestant]}")
