"""relive: experience replay, paged, shared between processes, prioritized."""

from typing import TYPE_CHECKING, Any

from relive import errors
from relive._wrong_names import unknown_attribute
from relive.batch import Batch
from relive.batches import Batches
from relive.config import TableConfig
from relive.draws import Draw
from relive.errors import DeadlineExceeded, ReliveError
from relive.explicit import Explicit, Window
from relive.hindsight import Hindsight
from relive.index import Index
from relive.items import Episodes, Sequences, Transitions
from relive.limiters import MinSize, Queue, SamplesPerInsert, StalenessBudget
from relive.mixture import Mixture
from relive.open import attach, connect, list_tables, loader, remove
from relive.patterns import Condition, Pattern, PatternWriter
from relive.priorities import sequence_priority
from relive.prompt_groups import PromptGroups
from relive.protocol import ReplayTable, ReplayWriter
from relive.samplers import (
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
from relive.spec import ArraySpec, StepSpec
from relive.stats import IndexStats, TableStats, TierStats
from relive.storage import LocalMemory, SharedMemory, Tiered
from relive.table import Table
from relive.writer import Writer

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
    "loader",
    "remove",
    "sequence_priority",
    "Shuffle",
]

if not TYPE_CHECKING:  # called for what is not there only; to a checker it is not there

    def __getattr__(name: str) -> Any:
        raise unknown_attribute("relive", name, __all__)
