"""Structured errors: their types, fields and sentences; no check and no decision.

Every error of the library is a ReliveError. Its fields are attributes, so a program decides by the type and the fields,
and never by the text. The sentence states the fault, the expected value, the value received, and the way out. All
errors pickle. The core knows codes and numbers only: it calls from_core, which chooses the class.
"""

from relive.errors.arguments import (
    DtypeMismatch,
    ForeignKey,
    InvalidConfig,
    InvalidPriority,
    LaneError,
    NoPriorities,
    NoProbabilities,
    ShapeMismatch,
    SpecError,
)
from relive.errors.base import ReliveError, stored_before
from relive.errors.core_codes import from_core
from relive.errors.episodes import AlreadyPublished, CapacityTooSmall, MissingNext, SeamMismatch
from relive.errors.handles import (
    CheckFailed,
    ForkedHandle,
    NotShareable,
    ReadOnly,
    TableClosed,
    TooManyLanes,
    TooManyParticipants,
    WriterClosed,
)
from relive.errors.items import EpisodeMismatch, EpisodeTooLong, RareItems, RowGone, RowsApart
from relive.errors.late import AlreadyCompleted, LateColumn
from relive.errors.names import MissingColumn, UnknownArgument, UnknownAttribute, UnknownColumn, UnnamedColumns
from relive.errors.packages import MissingPackage
from relive.errors.saving import DamagedSave, NoSuchSave, SaveCancelled, SaveInUse, SaveOutrun, SavesNotAllowed
from relive.errors.service import (
    AccessDenied,
    BadMessage,
    CannotListen,
    Draining,
    HandshakeFailed,
    ServiceUnavailable,
    StaleVersion,
    Unacknowledged,
)
from relive.errors.storage import FormatMismatch, InUse, NameTaken, NoSuchTable, NotARegion, StorageFull, SystemFailure
from relive.errors.waiting import DeadlineExceeded, RequestTooLarge, WaitsForItself

__all__ = [
    "AccessDenied",
    "AlreadyCompleted",
    "AlreadyPublished",
    "BadMessage",
    "CannotListen",
    "CapacityTooSmall",
    "CheckFailed",
    "DamagedSave",
    "DeadlineExceeded",
    "Draining",
    "DtypeMismatch",
    "EpisodeMismatch",
    "EpisodeTooLong",
    "ForeignKey",
    "ForkedHandle",
    "FormatMismatch",
    "HandshakeFailed",
    "InUse",
    "InvalidConfig",
    "InvalidPriority",
    "LaneError",
    "LateColumn",
    "MissingColumn",
    "MissingNext",
    "MissingPackage",
    "NameTaken",
    "NoPriorities",
    "NoProbabilities",
    "NoSuchSave",
    "NoSuchTable",
    "NotARegion",
    "NotShareable",
    "RareItems",
    "ReadOnly",
    "ReliveError",
    "RequestTooLarge",
    "RowGone",
    "RowsApart",
    "SaveCancelled",
    "SaveInUse",
    "SaveOutrun",
    "SavesNotAllowed",
    "SeamMismatch",
    "ServiceUnavailable",
    "ShapeMismatch",
    "SpecError",
    "StaleVersion",
    "StorageFull",
    "SystemFailure",
    "TableClosed",
    "TooManyLanes",
    "TooManyParticipants",
    "Unacknowledged",
    "UnknownArgument",
    "UnknownAttribute",
    "UnknownColumn",
    "UnnamedColumns",
    "WaitsForItself",
    "WriterClosed",
    "from_core",
    "stored_before",
]
