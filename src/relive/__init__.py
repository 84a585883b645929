"""relive: experience replay, paged, shared between processes, prioritized."""

from typing import TYPE_CHECKING, Any

from relive import errors
from relive._wrong_names import unknown_attribute
from relive.batch import Batch, Draw
from relive.batches import Batches
from relive.config import TableConfig
from relive.errors import DeadlineExceeded, ReliveError
from relive.explicit import Explicit, Window
from relive.index import Index
from relive.items import Episodes, Sequences, Transitions
from relive.limiters import MinSize, Queue, SamplesPerInsert, StalenessBudget
from relive.open import attach, connect, list_tables, remove
from relive.patterns import Condition, Pattern, PatternWriter
from relive.priorities import sequence_priority
from relive.protocol import ReplayTable, ReplayWriter
from relive.samplers import Fifo, Lifo, MaxPriority, MinPriority, Prioritized, Reservoir, Uniform
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
    "Index",
    "IndexStats",
    "Lifo",
    "LocalMemory",
    "MaxPriority",
    "MinPriority",
    "MinSize",
    "Pattern",
    "PatternWriter",
    "Prioritized",
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
    "Transitions",
    "Uniform",
    "Window",
    "Writer",
    "attach",
    "connect",
    "errors",
    "list_tables",
    "remove",
    "sequence_priority",
]

if not TYPE_CHECKING:  # called for what is not there only; to a checker it is not there

    def __getattr__(name: str) -> Any:
        raise unknown_attribute("relive", name, __all__)
