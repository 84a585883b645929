"""relive: experience replay for reinforcement learning: paged, prioritized, and shared between processes."""

import importlib
from typing import TYPE_CHECKING, Any

from relive import errors
from relive.checks.names import unknown_attribute
from relive.config.explicit import Explicit, Window
from relive.config.hindsight import Hindsight
from relive.config.index import Index
from relive.config.items import Episodes, Sequences, Transitions
from relive.config.limiters import MinSize, Queue, SamplesPerInsert, StalenessBudget
from relive.config.prompt_groups import PromptGroups
from relive.config.samplers import (
    Fifo,
    Fresh,
    Lifo,
    MaxPriority,
    MinPriority,
    Prioritized,
    RankBased,
    Reservoir,
    Shuffle,
    TopK,
    Uniform,
)
from relive.config.spec import ArraySpec, StepSpec
from relive.config.storage import File, LocalMemory, SharedMemory, Tiered
from relive.config.table_config import TableConfig
from relive.core.protocol import ReplayTable, ReplayWriter
from relive.errors import DeadlineExceeded, ReliveError
from relive.reading.batch import Batch
from relive.reading.batches import Batches
from relive.reading.draws import Draw
from relive.reading.priorities import sequence_priority
from relive.table.open import attach, connect, list_tables, load, loader, remove, saved
from relive.table.table import Table
from relive.writing.writer import Writer

__version__ = "0.1.0"

__all__ = [
    "ArraySpec",
    "Batch",
    "Batches",
    "Condition",
    "DeadlineExceeded",
    "Draw",
    "Episodes",
    "Explicit",
    "Fifo",
    "File",
    "Fresh",
    "Hindsight",
    "Index",
    "IndexStats",
    "Lifo",
    "LocalMemory",
    "MaxPriority",
    "MinPriority",
    "MinSize",
    "Mixture",
    "Pattern",
    "PatternWriter",
    "Prioritized",
    "PromptGroups",
    "RankBased",
    "Queue",
    "ReliveError",
    "ReplayTable",
    "ReplayWriter",
    "Reservoir",
    "SamplesPerInsert",
    "Sequences",
    "SharedMemory",
    "StalenessBudget",
    "StepSpec",
    "Table",
    "TableConfig",
    "TableStats",
    "TierStats",
    "Tiered",
    "TopK",
    "Transitions",
    "Uniform",
    "Window",
    "Writer",
    "attach",
    "connect",
    "errors",
    "list_tables",
    "load",
    "loader",
    "remove",
    "saved",
    "sequence_priority",
    "Shuffle",
]

if TYPE_CHECKING:
    from relive.adapters.minari import from_minari as from_minari
    from relive.over.mixture import Mixture
    from relive.over.patterns import Condition, Pattern, PatternWriter
    from relive.table.stats import IndexStats, TableStats, TierStats
else:  # called for what is not there only; to a checker it is not there
    _LOADED_WHEN_USED = {  # by name, their modules: most programs use none of them
        "Condition": "relive.over.patterns",
        "IndexStats": "relive.table.stats",
        "Mixture": "relive.over.mixture",
        "Pattern": "relive.over.patterns",
        "PatternWriter": "relive.over.patterns",
        "TableStats": "relive.table.stats",
        "TierStats": "relive.table.stats",
        "from_minari": "relive.adapters.minari",  # imports minari
    }

    def __getattr__(name: str) -> Any:
        if name in _LOADED_WHEN_USED:
            value = getattr(importlib.import_module(_LOADED_WHEN_USED[name]), name)
            if name != "from_minari":
                globals()[name] = value
            return value
        raise unknown_attribute("relive", name, __all__)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_LOADED_WHEN_USED})
