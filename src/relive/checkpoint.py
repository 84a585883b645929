"""One cut of learner, table and cursor: `save`, `load`, `load_learner`. All of them are in a checkpoint, or none is.

`to_bytes` and `from_bytes` are for the learners of served and sharded tables, whose saves take bytes.

    relive.checkpoint.save("runs/one", table=table, learner={"model": model.state_dict()}, cursor=loader)
    one = relive.checkpoint.load("runs/one")  # one.table, one.learner, one.cursor

A checkpoint is a save of the table (docs/saving.md) with two blobs beside it, `learner` and `cursor`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final

from relive.checks.names import names_arguments
from relive.checks.values import flag, folder_path, integer
from relive.config.storage import Storage
from relive.errors import InvalidConfig
from relive.saving.copying import SaveFacts
from relive.saving.reader import open_save
from relive.saving.saving import Saving
from relive.saving.trees import tree_from_bytes, tree_to_bytes
from relive.table.open import load as load_table
from relive.table.table import Table

__all__ = ["Checkpoint", "Cursor", "from_bytes", "load", "load_learner", "save", "to_bytes"]

_LEARNER, _CURSOR = "learner", "cursor"
_STATE = "{'learner': relive.checkpoint.to_bytes(state)}"
_OTHERS = f"a served table has remote.save(name, beside={_STATE}), a table over shards save(path, beside={_STATE})"


class Cursor(Protocol):
    """The position of a reader of batches: a Loader, a StatefulDataLoader, a Mixture."""

    def state_dict(self) -> Mapping[str, Any]:
        """Returns the position behind the batches that were trained."""
        ...


@final
@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was loaded.

    Attributes:
        table: The new table.
        learner: The state of the learner; tensors are on the CPU. None: none was saved.
        cursor: The state for cursor.load_state_dict(). None: none was saved.
    """

    table: Table
    learner: Any
    cursor: Any


@names_arguments
def save(
    path: str | os.PathLike[str],
    *,
    table: Table,
    learner: Any = None,
    cursor: Cursor | None = None,
    wait: bool = True,
    keep: int = 1,
) -> SaveFacts | Saving:
    """Saves learner, table and cursor as of one moment.

    Call it between two updates, on the thread that makes them: the learner's arrays are copied before the call returns.
    Batches that were drawn ahead and not trained are drawn again after a load, because the cursor stands behind the
    last batch that was handed out.

    Args:
        path: The folder.
        table: The table.
        learner: A state_dict, or any tree of dicts, lists, numbers, text, arrays and tensors; None: none.
        cursor: Has state_dict(); None: none.
        wait: False: return when the moment has passed; a thread writes the rest.
        keep: The number of checkpoints that the folder keeps.

    Raises:
        InvalidConfig: A value of the learner's state is none of these types, or the cursor has no state_dict. Nothing
            is written.
        SaveInUse, StorageFull, SystemFailure, SaveOutrun, ReadOnly, TableClosed: as for Table.save.
    """
    if not isinstance(table, Table):
        raise InvalidConfig("table of a checkpoint", f"a relive.Table; {_OTHERS}", table)
    beside = {}
    if learner is not None:
        beside[_LEARNER] = tree_to_bytes(learner)
    if cursor is not None:
        if not callable(getattr(cursor, "state_dict", None)):
            raise InvalidConfig("cursor of a checkpoint", "a Loader, a Mixture, or None", cursor)
        beside[_CURSOR] = tree_to_bytes(dict(cursor.state_dict()))
    if flag("wait", wait):
        return table.save(path, beside, True, keep)
    return table.save(path, beside, wait=False, keep=keep)


@names_arguments
def load(
    path: str | os.PathLike[str],
    storage: Storage | None = None,
    capacity: int | None = None,
    max_lanes: int | None = None,
    timeout_s: float | None = None,
    number: int | None = None,
) -> Checkpoint:
    """Loads a checkpoint of a folder. The arguments and errors are those of relive.load."""
    table = load_table(path, storage, capacity, max_lanes, timeout_s, number)
    try:
        blobs = table.loaded.beside if table.loaded is not None else {}
        parts = [
            tree_from_bytes(blobs[name], os.fspath(path)) if name in blobs else None for name in (_LEARNER, _CURSOR)
        ]
    except BaseException:
        table.close()
        raise
    return Checkpoint(table, *parts)


@names_arguments
def load_learner(path: str | os.PathLike[str], number: int | None = None) -> Any:
    """Loads the learner of a checkpoint, without its table. None: none was saved.

    Args:
        path: The folder.
        number: The number of the save; None: the newest.

    Raises:
        NoSuchSave, DamagedSave, FormatMismatch, StorageFull: as for relive.saved.
    """
    with open_save(
        folder_path("path of a checkpoint", path), cut=None if number is None else integer("number", number, 1)
    ) as reader:
        if _LEARNER not in reader.blob_names():
            return None
        return tree_from_bytes(reader.blob(_LEARNER), os.fspath(path))


def to_bytes(learner: Any) -> bytes:
    """Packs the state of a learner, without pickle: a blob for `beside` of any save.

    Args:
        learner: A state_dict, or any tree of dicts, lists, numbers, text, arrays and tensors.

    Raises:
        InvalidConfig: A value is none of these types.
    """
    return tree_to_bytes(learner)


def from_bytes(data: bytes) -> Any:
    """Unpacks what to_bytes packed; tensors are on the CPU. Raises DamagedSave."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise InvalidConfig("state of a learner", "the bytes that relive.checkpoint.to_bytes returned", data)
    return tree_from_bytes(bytes(data), "bytes of a learner")
