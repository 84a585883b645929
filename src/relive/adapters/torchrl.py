"""TorchRL's storage, sampler and writer on a table.

    from relive.adapters.torchrl import ReliveSampler, ReliveStorage, ReliveWriter

    buffer = TensorDictReplayBuffer(
        storage=ReliveStorage(1_000_000, n_step=3, gamma=0.99, alpha=0.6),
        sampler=ReliveSampler(beta=0.4),
        writer=ReliveWriter(),
        batch_size=256,
        priority_key="td_error",
    )

The first `extend` decides the columns, as it does for LazyTensorStorage. An entry of the root that also stands under
"next", with the same shape and dtype, is stored once. An `index` is the key of an item, and no place: it is never used
again. `buffer[:]` gives all items in the order of their age.

This module imports torchrl. `import relive` alone does not import this module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.adapters.errors import GoneItems, NotOffered
from relive.adapters.packing import pack, unpack
from relive.adapters.seams import CuttingWriter
from relive.checks.values import finite, integer
from relive.config.casting import refuse_hidden
from relive.config.index import Index
from relive.config.items import Transitions
from relive.config.samplers import Prioritized, Uniform
from relive.config.spec import ArraySpec, StepSpec
from relive.config.storage import Storage as TableStorage
from relive.errors import InvalidConfig, MissingPackage
from relive.errors.extras import install_command
from relive.reading.batch import Batch
from relive.table.open import load
from relive.table.table import Table

try:
    import torch
    from tensordict import TensorDict, TensorDictBase
    from torchrl.data import PrioritizedSampler, Writer
    from torchrl.data.replay_buffers.storages import LazyTensorStorage, Storage
except ImportError as _problem:
    _package = _problem.name or "torchrl"
    raise MissingPackage("relive.adapters.torchrl", _package, install_command("torchrl")) from _problem

__all__ = ["ReliveSampler", "ReliveStorage", "ReliveWriter"]

Key = tuple[str, ...]

_REWARD: Key = ("next", "reward")
_ENDS = ("terminated", "truncated", "done")
_BITS = "ends"  # the column with the ends as they were given, one bit for each of _ENDS
_ADDED = ("index", "priority_weight")  # by a buffer, in a tensordict that it sampled
_COLUMNS = "torchrl_columns"  # the blob beside a save: which column has which leaf


class ReliveStorage(LazyTensorStorage):
    """A storage of tensordicts, whose steps lie in a table.

    Tensordicts have steps one after another, [T]. The steps of several environments come as [num_envs, T], or end to
    end as [num_envs * T]. A step whose state does not continue the step before it begins a new episode.

    A sample with n_step > 1 has the return in ("next", "reward"), the state after it in ("next", ...), and the number
    of its steps in "steps_to_next_obs", which TorchRL's value estimators read. ("next", "terminated") is True where the
    return has no value to bootstrap from.

    Args:
        max_size: the most steps.
        n_step: steps of a return.
        gamma: discount factor of the returns. Give the loss's.
        alpha: exponent of the priorities, for ReliveSampler(beta=...); None: all items have the same probability.
        num_envs: number of environments whose steps come together.
        device: device of the samples.
        storage: where the table lives: LocalMemory() (default), SharedMemory(name), File(path) or Tiered(...).

    Raises:
        InvalidConfig: an argument has another type or value.
    """

    def __init__(
        self,
        max_size: int,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        alpha: float | None = None,
        num_envs: int = 1,
        device: Any = "cpu",
        storage: TableStorage | None = None,
    ) -> None:
        Storage.__init__(self, integer("max_size", max_size, 1))
        self.ndim = 1
        self.device = torch.device(device)
        self.n_step = integer("n_step", n_step, 1, 1024)
        self.gamma = finite("gamma", gamma, 0.0, 1.0)
        self.alpha = None if alpha is None else finite("alpha", alpha, 0.0)
        self.num_envs = integer("num_envs", num_envs, 1)
        self.table: Table | None = None
        self._where = storage
        self._columns: dict[str, Key] = {}  # column -> entry of a tensordict
        self._shapes: dict[Key, tuple[int, ...]] = {}
        self._ends: tuple[Key, ...] = ()
        self._writer: CuttingWriter | None = None
        self._drawn: tuple[torch.Tensor, Batch] | None = None

    # ---- writing ---------------------------------------------------------------------------------------------------

    def write(self, data: TensorDictBase) -> torch.Tensor:
        """Stores the steps of a tensordict [T], or [num_envs, T]. Returns their keys int64, of the same shape.

        Raises:
            InvalidConfig: the tensordict has another shape, or an entry that is no tensor of fixed size.
            MissingColumn, UnknownColumn, ShapeMismatch, DtypeMismatch: an entry differs from those of the first call.
        """
        envs, shape = self.num_envs, data.shape
        if data.ndim == 2 and data.shape[0] == envs:
            data = data.reshape(-1)
        if data.ndim != 1 or data.shape[0] % envs:
            expected = f"[T] or [{envs}, T] steps; flatten others: data.reshape(-1)"
            raise InvalidConfig("batch size of a tensordict to store", expected, tuple(data.shape))
        if not len(data):
            return torch.zeros(0, dtype=torch.long)
        entries = {_path(key): value for key, value in data.items(True, True) if _path(key)[0] not in _ADDED}
        if self._writer is None:
            self._begin(entries)
        assert self._writer is not None
        keys = self._writer.extend(**self._rows(entries, len(data) // envs))
        return torch.from_numpy(np.ascontiguousarray(keys.T).reshape(shape))

    def _begin(self, entries: Mapping[Key, Any]) -> None:
        columns: dict[str, ArraySpec] = {}
        for path, value in entries.items():
            root, is_next = (path[1:] if path[0] == "next" else path), path[0] == "next"
            if root[-1] in _ENDS and len(root) == 1:
                continue
            twin = entries.get(root) if is_next else entries.get(("next", *root))
            is_state = twin is not None and twin.shape == value.shape and twin.dtype == value.dtype
            if is_next and is_state:
                continue
            array = _array(path, value)
            shape = array.shape[1:]
            if path == _REWARD and array[0].size == 1 and array.dtype.kind == "f":
                name, column = "reward", ArraySpec((), array.dtype)
            else:
                group = "state" if is_state else "after" if is_next else "step"
                name = "/".join((group, *root))
                column = ArraySpec(shape, array.dtype, kind="state" if is_state else "step")
            columns[name] = column
            self._columns[name] = path
            self._shapes[path] = shape
        self._ends = tuple(path for path in entries if path[-1] in _ENDS and len(path) <= 2)
        for path in self._ends:
            self._shapes[path] = tuple(entries[path].shape[1:])
        columns[_BITS] = ArraySpec((), np.uint8)
        items = Transitions(self.n_step, self.gamma if self.n_step > 1 else 1.0)
        sampler = Uniform() if self.alpha is None else Prioritized(self.alpha)
        seed = int(torch.randint(2**31, (), generator=self._rng))
        self.table = Table(
            StepSpec(_nested(columns)),
            self.max_size,
            Index(items, sampler),
            storage=self._where,
            max_lanes=self.num_envs,
            seed=seed,
        )
        self._writer = CuttingWriter(self.table, self.num_envs)

    def _rows(self, entries: Mapping[Key, Any], steps: int) -> dict[str, NDArray[Any]]:
        """The columns [T, num_envs, ...] of a block. Ends and seams inside the block are ends of episodes."""
        rows: dict[str, NDArray[Any]] = {}

        def put(name: str, path: Key, shape: tuple[int, ...]) -> None:
            if path not in entries:
                raise InvalidConfig("tensordict to store", f"the entry {path} that the first one had", sorted(entries))
            value = _array(path, entries[path]).reshape(self.num_envs, steps, *shape)
            rows[name] = value.swapaxes(0, 1)

        assert self.table is not None
        seams = np.zeros((steps, self.num_envs), np.bool_)
        for name, path in self._columns.items():
            column = self.table.spec.columns[name]
            put(name, path, column.shape)
            if column.kind == "state":
                put(f"next_{name}", ("next", *path), column.shape)
                differs = rows[name][1:] != rows[f"next_{name}"][:-1]
                seams[:-1] |= differs.any(axis=tuple(range(2, differs.ndim)))
        ends = {}
        for end in _ENDS:
            value = entries.get(("next", end))
            given = np.zeros((steps, self.num_envs), np.bool_)
            if value is not None:
                given = _array(("next", end), value).reshape(self.num_envs, steps, -1)[:, :, 0].T.astype(np.bool_)
            ends[end] = given
        terminated = ends["terminated"] | (ends["done"] & ~ends["truncated"])
        truncated = (ends["truncated"] | seams) & ~terminated
        bits = sum(ends[end].astype(np.uint8) << place for place, end in enumerate(_ENDS))
        return {**rows, _BITS: np.asarray(bits, np.uint8), "terminated": terminated, "truncated": truncated}

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Refused: rows that readers may have drawn are never written again."""
        raise NotOffered("ReliveStorage", "writing at an index", "extend the buffer: the oldest steps leave")

    # ---- reading ---------------------------------------------------------------------------------------------------

    def draw(self, batch_size: int) -> tuple[torch.Tensor, Batch]:
        """Draws items. Returns their keys, and their rows, which the next get() of these keys returns."""
        if self.table is None:
            raise NotOffered("ReliveStorage", "a sample of an empty buffer", "extend it first")
        batch = self.table.sample(batch_size, self._names())
        keys = torch.from_numpy(batch.item_keys)
        self._drawn = keys, batch
        return keys, batch

    def get(self, index: Any) -> Any:
        """The items of these keys: an int, a tensor or array [B], or a slice over all items in the order of age.

        Raises:
            GoneItems: an item has left the table, or its return is not complete.
        """
        drawn, self._drawn = self._drawn, None
        if isinstance(index, slice):
            index = torch.from_numpy(self._all_keys()[index])
        if self.table is None:
            raise NotOffered("ReliveStorage", "a read of an empty buffer", "extend it first")
        is_one = isinstance(index, int) or getattr(index, "ndim", 1) == 0
        if drawn is not None and index is drawn[0]:
            return self._tensordict(drawn[1])
        keys = np.asarray(torch.as_tensor(index).cpu().reshape(-1), np.int64)
        batch = self.table.gather(keys, self._names())
        assert batch.present is not None
        if not batch.present.all():
            raise GoneItems(int((~batch.present).sum()), int(keys[~batch.present][0]))
        made = self._tensordict(batch)
        return made[0] if is_one else made

    def _names(self) -> list[str]:
        assert self.table is not None
        states = [f"next_{name}" for name in self.table.spec.state_columns]
        return [*self._columns, *states, "discount", "truncated", "num_steps", _BITS]

    def _tensordict(self, batch: Batch) -> TensorDictBase:
        number = len(batch.item_keys)
        rows = batch.flat()
        entries: dict[Key, Any] = {}
        for name, path in self._columns.items():
            entries[path] = rows[name].reshape(number, *self._shapes[path])
            following = rows.get(f"next_{name}")
            if following is not None:
                entries[("next",) + path] = following
        ends = self._ends_of(rows)
        for path in self._ends:
            end = ends[path[-1]] if path[0] == "next" else np.zeros(number, np.bool_)
            shape = (number, *self._shapes[path])
            entries[path] = np.array(np.broadcast_to(end.reshape(-1, *[1] * (len(shape) - 1)), shape))
        if self.n_step > 1:
            entries[("steps_to_next_obs",)] = rows["num_steps"].astype(np.int64).reshape(-1, 1)
        made = TensorDict({}, [number])
        for path, array in entries.items():
            made.set(path, torch.from_numpy(np.ascontiguousarray(array)))
        return made if self.device.type == "cpu" else made.to(self.device)

    def _ends_of(self, rows: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.bool_]]:
        """The ends of steps as they were given; those of returns of several steps as their windows end."""
        if self.n_step == 1:
            return {end: (rows[_BITS] & (1 << place)) != 0 for place, end in enumerate(_ENDS)}
        terminated, truncated = rows["discount"] == 0.0, rows["truncated"]
        return {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}

    def _all_keys(self) -> NDArray[np.int64]:
        pages = [] if self.table is None else list(self.table.keys())
        return np.concatenate(pages) if pages else np.zeros(0, np.int64)

    def contains(self, item: Any) -> Any:
        """Which of these keys are items, bool."""
        keys = torch.as_tensor(item)
        if self.table is None:
            return torch.zeros(keys.shape, dtype=torch.bool)
        present = self.table.gather(np.asarray(keys.reshape(-1)), ["num_steps"]).present
        return torch.from_numpy(np.asarray(present)).reshape(keys.shape)

    def __len__(self) -> int:
        return 0 if self.table is None else len(self.table)

    @property
    def initialized(self) -> bool:
        """Whether the first extend has decided the columns."""
        return self.table is not None

    def _empty(self) -> None:
        if self.table is not None:
            self.table.clear()

    # ---- files -----------------------------------------------------------------------------------------------------

    def dumps(self, path: Any) -> None:
        """Saves the table and its columns into a folder."""
        if self.table is not None:
            self.table.save(Path(path) / "table", beside={_COLUMNS: json.dumps(self._told()).encode()})

    def loads(self, path: Any) -> None:
        """Reads a folder that dumps wrote. Open episodes are truncated. An empty storage has left no table there."""
        folder = Path(path) / "table"
        if not folder.exists():
            return
        table = load(folder, self._where)
        try:
            assert table.loaded is not None
            told = json.loads(table.loaded.beside[_COLUMNS])
        except KeyError:
            table.close()
            raise InvalidConfig("folder to load", "one that ReliveStorage.dumps wrote", str(path)) from None
        self._take(table, told)

    def state_dict(self) -> dict[str, Any]:
        """The table and its columns, as arrays of bytes."""
        if self.table is None:
            return {}
        files = {name: torch.from_numpy(data.copy()) for name, data in pack(self.table).items()}
        return {"columns": json.dumps(self._told()), "files": files}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Reads what state_dict returned. Open episodes are truncated."""
        if state_dict:
            files = {name: np.asarray(data) for name, data in state_dict["files"].items()}
            self._take(unpack(files, self._where), json.loads(state_dict["columns"]))

    def _told(self) -> dict[str, Any]:
        shapes = [[list(path), list(shape)] for path, shape in self._shapes.items()]
        return {
            "columns": {name: list(path) for name, path in self._columns.items()},
            "shapes": shapes,
            "ends": [list(path) for path in self._ends],
        }

    def _take(self, table: Table, told: Mapping[str, Any]) -> None:
        if self.table is not None:
            self.table.close()
        self.table = table
        self._columns = {name: tuple(path) for name, path in told["columns"].items()}
        self._shapes = {tuple(path): tuple(shape) for path, shape in told["shapes"]}
        self._ends = tuple(tuple(path) for path in told["ends"])
        self._writer = CuttingWriter(table, self.num_envs)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = {**Storage.__getstate__(self), "told": self.state_dict(), "_drawn": None}
        return {**state, "table": None, "_writer": None, "_where": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        told = state.pop("told")
        Storage.__setstate__(self, state)
        self.load_state_dict(told)

    def __repr__(self) -> str:
        return f"ReliveStorage({len(self)} of {self.max_size} steps, n_step={self.n_step}, alpha={self.alpha})"


class ReliveSampler(PrioritizedSampler):
    """The sampler of a ReliveStorage. It draws by priority if the storage has alpha, and else uniformly.

    With priorities, the info of a sample has "priority_weight": (N p) ** -beta, divided by the largest of the batch.

    Args:
        beta: exponent of the importance weights. `sampler.beta = ...` changes it.
        eps: is added to each priority.
        reduction: how the priorities of one item become one number: 'max', 'min', 'mean' or 'median'.
    """

    def __init__(self, beta: float = 0.4, *, eps: float = 1e-8, reduction: str = "max") -> None:
        self._beta = finite("beta", beta, 0.0)
        self._eps = finite("eps", eps, 0.0)
        if reduction not in ("max", "min", "mean", "median"):
            raise InvalidConfig("reduction", "'max', 'min', 'mean' or 'median'", reduction)
        self.reduction = reduction

    def sample(self, storage: Storage, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """Draws the keys of batch_size items."""
        keys, batch = _own(storage).draw(batch_size)
        if storage.alpha is None:
            return keys, {}
        return keys, {"priority_weight": torch.from_numpy(batch.weights(self._beta))}

    def update_priority(self, index: Any, priority: Any, *, storage: Any = None) -> None:
        """Sets priorities of items. Items that are gone are counted (table.stats().updates_stale), and no more."""
        if storage is None or _own(storage).alpha is None or storage.table is None:
            return
        refuse_hidden("index", index)
        refuse_hidden("priority", priority)
        keys = np.asarray(torch.as_tensor(index).detach().cpu().reshape(-1), np.int64)
        values = np.asarray(torch.as_tensor(priority).detach().cpu().reshape(-1), np.float64)
        storage.table.update_priorities(keys, np.broadcast_to(values, keys.shape) + self._eps)

    def add(self, index: Any) -> None:
        """Nothing: the table gives new items the largest priority so far."""

    def extend(self, index: Any) -> None:
        """Nothing, as for add."""

    def mark_update(self, index: Any, *, storage: Any = None) -> None:
        """Nothing: new items have the largest priority already."""

    @property
    def default_priority(self) -> float:
        """The first priority of an item before any was given."""
        return 1.0

    def _empty(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        """beta, eps and reduction; the storage's state has the priorities."""
        return {"beta": self._beta, "eps": self._eps, "reduction": self.reduction}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Reads what state_dict returned."""
        self._beta, self._eps, self.reduction = (state_dict[name] for name in ("beta", "eps", "reduction"))

    def dumps(self, path: Any) -> None:
        """Writes the state into a folder."""
        Path(path).mkdir(parents=True, exist_ok=True)
        (Path(path) / "sampler.json").write_text(json.dumps(self.state_dict()))

    def loads(self, path: Any) -> None:
        """Reads the state from a folder."""
        self.load_state_dict(json.loads((Path(path) / "sampler.json").read_text()))

    def __repr__(self) -> str:
        return f"ReliveSampler(beta={self._beta}, eps={self._eps}, reduction={self.reduction!r})"


class ReliveWriter(Writer):
    """The writer of a ReliveStorage. It returns keys as indices."""

    def __init__(self) -> None:
        super().__init__()
        self._write_count = 0

    def register_storage(self, storage: Storage) -> None:
        """Takes the storage. Raises InvalidConfig if it is no ReliveStorage."""
        super().register_storage(_own(storage))

    def add(self, data: Any) -> int:
        """Stores one step; returns its key."""
        return int(self.extend(data.unsqueeze(0))[0])

    def extend(self, data: Any) -> torch.Tensor:
        """Stores steps; returns their keys, in the order of the rows."""
        if not isinstance(data, TensorDictBase):
            raise InvalidConfig("data to store", "a TensorDict", type(data).__name__)
        keys: torch.Tensor = _own(self._storage).write(data)
        self._write_count += keys.numel()
        return keys

    def _empty(self, empty_write_count: bool = True) -> None:
        if empty_write_count:
            self._write_count = 0

    def state_dict(self) -> dict[str, Any]:
        """The number of steps that were written."""
        return {"write_count": self._write_count}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Reads what state_dict returned."""
        self._write_count = int(state_dict["write_count"])

    def dumps(self, path: Any) -> None:
        """Writes the state into a folder."""
        Path(path).mkdir(parents=True, exist_ok=True)
        (Path(path) / "writer.json").write_text(json.dumps(self.state_dict()))

    def loads(self, path: Any) -> None:
        """Reads the state from a folder."""
        self.load_state_dict(json.loads((Path(path) / "writer.json").read_text()))


def _own(storage: Any) -> ReliveStorage:
    if not isinstance(storage, ReliveStorage):
        raise InvalidConfig("storage of ReliveSampler and ReliveWriter", "a ReliveStorage", type(storage).__name__)
    return storage


def _path(key: Any) -> Key:
    return (key,) if isinstance(key, str) else tuple(key)


def _array(path: Key, value: Any) -> NDArray[Any]:
    """The values of an entry as an array."""
    try:
        array: NDArray[Any] = value.detach().cpu().numpy()
        return array
    except (AttributeError, TypeError):
        what = getattr(value, "dtype", type(value).__name__)
        raise InvalidConfig(f"entry {path} of a tensordict to store", "a tensor of a numpy dtype", what) from None


def _nested(columns: Mapping[str, ArraySpec]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, column in columns.items():
        *above, last = name.split("/")
        place = nested
        for part in above:
            place = place.setdefault(part, {})
        place[last] = column
    return nested
