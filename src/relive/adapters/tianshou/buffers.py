"""VectorReplayBuffer and PrioritizedVectorReplayBuffer: the buffers of the off-policy algorithms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import h5py
import numpy as np
import pandas
from numpy.typing import NDArray
from tianshou.data import Batch
from tianshou.data import PrioritizedVectorReplayBuffer as _PrioritizedVectorReplayBuffer
from tianshou.data import VectorReplayBuffer as _VectorReplayBuffer
from tianshou.data.utils.converter import from_hdf5, to_hdf5, to_numpy

from relive.adapters.errors import NotOffered
from relive.adapters.packing import pack, unpack
from relive.adapters.seams import CuttingWriter
from relive.config.casting import unmasked
from relive.config.index import Index
from relive.config.items import Transitions
from relive.config.samplers import Prioritized, Sampler, Uniform
from relive.config.spec import ArraySpec, StepSpec
from relive.config.storage import Storage
from relive.errors import InvalidConfig
from relive.reading import batch as reading
from relive.table.table import Table

__all__ = ["PrioritizedVectorReplayBuffer", "VectorReplayBuffer"]

_STATES = {"obs": "observation", "obs_next": "next_observation"}
_PLACE = "place"  # the column with a step's index in the library's arrays
_EPSILON = float(np.finfo(np.float32).eps)


class VectorReplayBuffer(_VectorReplayBuffer):
    """Tianshou's VectorReplayBuffer, with its observations in a table, which is `table`.

    Args:
        total_size: the most steps, over all environments.
        buffer_num: number of environments.
        storage: where the table lives: LocalMemory() (default), SharedMemory(name), File(path) or Tiered(...).
        **kwargs: stack_num, ignore_obs_next, save_only_last_obs, sample_avail and random_seed, as for the class that
            is replaced. `add` needs obs_next in any case; it costs no memory.

    Raises:
        InvalidConfig: an argument has another type or value.
    """

    def __init__(self, total_size: int, buffer_num: int, *, storage: Storage | None = None, **kwargs: Any) -> None:
        super().__init__(total_size, buffer_num, **kwargs)
        self._begin(storage, int(kwargs.get("random_seed", 42)))

    def _begin(self, storage: Storage | None, seed: int) -> None:
        self.table: Table | None = None
        self._storage = storage
        self._seed = seed
        self._writer: CuttingWriter | None = None
        self._keys = np.full(self.maxsize, -1, np.int64)
        self._is_null = np.zeros(self.maxsize, np.bool_)
        self._num_null = 0
        self._drawn: tuple[NDArray[np.int64], reading.Batch] | None = None
        self._every_lane = np.arange(self.buffer_num)

    def _sampler(self) -> Sampler:
        return Uniform()

    # ---- writing ---------------------------------------------------------------------------------------------------

    def add(self, batch: Any, buffer_ids: Any = None) -> tuple[NDArray[Any], ...]:
        """Adds one step of each named environment. As the class that is replaced; obs_next is needed.

        Returns:
            (index, episode return, episode length, first index of the episode), [M] each.
        """
        if "obs_next" not in batch.get_keys():
            raise InvalidConfig(
                "batch to add", "obs_next, also with ignore_obs_next: it costs no memory", batch.get_keys()
            )
        lanes = self._every_lane
        if buffer_ids is not None:
            lanes = unmasked("buffer_ids", buffer_ids, np.int64).reshape(-1)
        light = Batch()
        light.__dict__.update({name: batch[name] for name in batch.get_keys() if name not in _STATES})
        stand_in = np.zeros((len(lanes), 1) if self._save_only_last_obs else len(lanes), np.uint8)
        light.__dict__.update(obs=stand_in, obs_next=stand_in)
        states = {name: _tree(name, batch[name], newest=self._save_only_last_obs) for name in _STATES}
        columns: dict[str, Any] = {
            "observation": states["obs"],
            "next_observation": states["obs_next"],
            "action": _tree("act", batch.act),
            "reward": _tree("rew", batch.rew),
        }
        ends = {name: unmasked(name, batch[name], np.bool_).reshape(-1) for name in ("terminated", "truncated")}
        ends["truncated"] = ends["truncated"] > ends["terminated"]
        told: tuple[NDArray[Any], ...] = super().add(light, lanes)
        places = columns[_PLACE] = np.asarray(told[0], np.int64).reshape(-1)
        if self._writer is None:
            self._make(columns)
        assert self.table is not None and self._writer is not None
        old = self._keys[places]
        if (old >= 0).any():
            self.table.delete(old[old >= 0])
        named = None if np.array_equal(lanes, self._every_lane) else lanes
        self._keys[places] = self._writer.append(named, **columns, **ends)
        self._note_nulls(places, [*states.values(), light])
        return told

    def _note_nulls(self, places: NDArray[np.int64], values: list[Any]) -> None:
        is_null: Any = False
        for array in _leaves(values):
            found = np.isnan(array) if array.dtype.kind in "fc" else pandas.isnull(array)
            if found.any():
                is_null = is_null | found.reshape(len(places), -1).any(1)
        if is_null is not False or self._num_null:
            self._num_null += int(np.sum(is_null)) - int(self._is_null[places].sum())
            self._is_null[places] = is_null

    def _make(self, columns: dict[str, Any]) -> None:
        spec = {
            name: _specs(value, "state" if name == "observation" else "step")
            for name, value in columns.items()
            if name != "next_observation"
        }
        self.table = Table(
            StepSpec(spec),
            self.maxsize + self.maxsize // 4 + 64 * self.buffer_num,  # room for pages with deleted steps
            Index(Transitions(), self._sampler()),
            storage=self._storage,
            max_lanes=self.buffer_num,
            seed=self._seed,
        )
        self._writer = CuttingWriter(self.table, self.buffer_num)

    def reset(self, keep_statistics: bool = False) -> None:
        """Removes all steps."""
        super().reset(keep_statistics)
        if self.table is not None:
            self.table.clear()
        self._keys[:] = -1
        self._is_null[:] = False
        self._num_null = 0

    def dropnull(self) -> None:
        """Refused: the observations are rows of a table."""
        raise NotOffered(type(self).__name__, "dropnull", "leave such steps out when you add them")

    def set_batch(self, batch: Any) -> None:
        """Refused: the observations are rows of a table."""
        raise NotOffered(type(self).__name__, "set_batch", "add the steps one after another")

    # ---- reading ---------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int | None) -> tuple[Any, NDArray[np.int64]]:
        """Draws a batch. Returns it and its indices. None or 0: everything, as the class that is replaced."""
        if batch_size is None or batch_size <= 0 or self._sample_avail:
            made: tuple[Any, NDArray[np.int64]] = super().sample(batch_size)
            return made
        names = [*_STATES.values(), _PLACE] if self.stack_num == 1 else [_PLACE]
        drawn = self._table().sample(batch_size, names)
        indices: NDArray[np.int64] = drawn[_PLACE]
        self._note_draw(indices)
        self._drawn = indices, drawn
        try:
            return self[indices], indices
        finally:
            self._drawn = None

    def sample_indices(self, batch_size: int | None) -> NDArray[np.int64]:
        """Draws indices. None or 0: all indices, as the class that is replaced."""
        if batch_size is None or batch_size <= 0 or self._sample_avail:
            indices: NDArray[np.int64] = super().sample_indices(batch_size)
        else:
            indices = self._table().sample(batch_size, [_PLACE])[_PLACE]
        self._note_draw(indices)
        return indices

    def hasnull(self) -> bool:
        """Whether a value of a stored step is NaN or None. Each step was looked at when it was added: O(1) now.

        The class that is replaced looks at all steps. Its trainer asks after every collection.
        """
        if self._num_null:
            return True
        later = set(self._meta.get_keys()) - set(self._input_keys)  # set_array_at_key added them
        return any(bool(pandas.isnull(array).any()) for array in _leaves([self._meta[name] for name in later]))

    def _note_draw(self, indices: NDArray[np.int64]) -> None:
        """Is called with the indices of each draw, before their values are read."""

    def get(self, index: Any, key: str, default_value: Any = None, stack_num: int | None = None) -> Any:
        """The values of one entry at these indices; observations with the frames before them if stack_num > 1."""
        if key not in _STATES:
            return super().get(index, key, default_value, stack_num)
        frames = self.stack_num if stack_num is None else stack_num
        if frames == 1:
            return self._read(index, key)
        indices = np.asarray(index)
        stack: list[Any] = []
        for _ in range(frames):
            stack = [self._read(indices, key), *stack]
            indices = self.prev(indices)
        if isinstance(stack[0], Batch):
            return Batch.stack(stack, axis=indices.ndim)
        return np.stack(stack, axis=indices.ndim)

    def _read(self, index: Any, key: str) -> Any:
        column = _STATES[key]
        if self._drawn is not None and index is self._drawn[0] and self.stack_num == 1:
            return _batch(self._drawn[1][column])
        indices = np.asarray(index)
        if indices.dtype == np.bool_:
            indices = np.flatnonzero(indices)
        keys = self._keys[indices.reshape(-1)]
        if (keys < 0).any():
            raise IndexError(f"index {int(indices.reshape(-1)[keys < 0][0])} of the buffer has no step yet")
        rows = self._table().gather(keys, [column])[column]
        return _batch(rows, indices.shape)

    def _table(self) -> Table:
        if self.table is None:
            raise NotOffered(type(self).__name__, "a read of an empty buffer", "add steps first")
        return self.table

    @property
    def obs(self) -> Any:
        """The observations of all stored steps, in the order of indices up to the last one that has a step."""
        return self._read(np.flatnonzero(self._keys >= 0), "obs")

    @property
    def obs_next(self) -> Any:
        """The next observations of all stored steps, in the order of `obs`."""
        return self._read(np.flatnonzero(self._keys >= 0), "obs_next")

    # ---- files -----------------------------------------------------------------------------------------------------

    def save_hdf5(self, path: str, compression: str | None = None) -> None:
        """Saves the buffer and its table into an HDF5 file."""
        with h5py.File(path, "w") as file:
            to_hdf5(self.__getstate__(), file, compression=compression)

    @classmethod
    def load_hdf5(cls, path: str, device: str | None = None) -> Any:
        """A buffer from a file that save_hdf5 wrote. Open episodes are truncated in the table."""
        with h5py.File(path, "r") as file:
            state = from_hdf5(file, device=device)
        made = cls.__new__(cls)
        made.__setstate__(dict(state))
        return made

    def __getstate__(self) -> dict[str, Any]:
        """The attributes, with the contents of the table in the place of its handle."""
        own = ("table", "_writer", "_storage", "_drawn")
        state = {name: value for name, value in self.__dict__.items() if name not in own}
        packed = {} if self.table is None else pack(self.table)
        files = {f"file{number}": np.asarray(data) for number, data in enumerate(packed.values())}
        return {**state, "packed_names": np.array(list(packed), dtype="S"), "packed": files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes a table of its own, in the memory of this process."""
        state = dict(state)
        names, files = state.pop("packed_names"), state.pop("packed")
        super().__setstate__(state)
        if len(self._meta.get_keys()):
            self._set_batch_for_children()  # else they have copies, and unfinished_index reads those
        self._storage = self._drawn = self._writer = self.table = None
        if len(names):
            packed = {name.decode(): np.asarray(files[f"file{number}"]) for number, name in enumerate(names)}
            self.table = unpack(packed)
            self._writer = CuttingWriter(self.table, self.buffer_num)


class PrioritizedVectorReplayBuffer(VectorReplayBuffer, _PrioritizedVectorReplayBuffer):
    """Tianshou's PrioritizedVectorReplayBuffer, with its observations and priorities in a table.

    Args:
        total_size: the most steps, over all environments.
        buffer_num: number of environments.
        alpha: exponent of the priorities, > 0.
        beta: exponent of the importance weights. set_beta changes it.
        weight_norm: whether weights are divided by the largest of the batch.

    The other arguments are those of VectorReplayBuffer.
    """

    _max_prio: float
    _min_prio: float

    def __init__(self, total_size: int, buffer_num: int, *, storage: Storage | None = None, **kwargs: Any) -> None:
        _PrioritizedVectorReplayBuffer.__init__(self, total_size, buffer_num, **kwargs)
        del self.weight  # the library's tree
        self._priorities = np.zeros(self.maxsize, np.float32)
        self._begin(storage, int(kwargs.get("random_seed", 42)))

    def _sampler(self) -> Sampler:
        return Prioritized(self._alpha)

    def init_weight(self, index: Any) -> None:
        """Notes the first priority of steps: the largest so far, which the table gives them, too."""
        self._priorities[index] = self._max_prio

    def get_weight(self, index: Any) -> Any:
        """The importance weights of these indices, before they are divided by the largest of the batch."""
        masses = self._priorities[index].astype(np.float64) ** self._alpha
        return (masses / self._min_prio) ** (-self._beta)

    def update_weight(self, index: NDArray[np.int64], new_weight: Any) -> None:
        """Sets the priorities of steps to |new_weight| + eps."""
        indices = unmasked("index", index, np.int64).reshape(-1)
        priorities = np.abs(unmasked("new_weight", to_numpy(new_weight), np.float64)).reshape(-1) + _EPSILON
        if priorities.shape != indices.shape:
            raise InvalidConfig("new_weight", f"one number for each of {len(indices)} indices", priorities.shape)
        keys = self._keys[indices]
        stored = keys >= 0
        self._table().update_priorities(keys[stored], priorities[stored])
        self._priorities[indices] = priorities
        self._max_prio = max(self._max_prio, float(priorities.max()))
        self._min_prio = min(self._min_prio, float(priorities.min()))

    def set_beta(self, beta: float) -> None:
        """Sets the exponent of the importance weights."""
        super().set_beta(beta)
        self._beta = beta


def _tree(name: str, value: Any, newest: bool = False) -> Any:
    """A Batch as nested dicts of arrays; newest: only the last frame of each stack. Raises DtypeMismatch."""
    if type(value) is np.ndarray:  # the usual case: isinstance of a Batch, a protocol, costs microseconds
        return value[:, -1] if newest else value
    if isinstance(value, Batch):
        return {str(part): _tree(f"{name}/{part}", value[part], newest) for part in value.get_keys()}
    array = unmasked(name, to_numpy(value))
    return array[:, -1] if newest else array


def _leaves(values: Iterable[Any]) -> Iterator[NDArray[Any]]:
    """The arrays of nested dicts and batches that may have NaN or None in them."""
    for value in values:
        if isinstance(value, dict):
            yield from _leaves(value.values())
        elif type(value) is not np.ndarray and isinstance(value, Batch):
            yield from _leaves(value.__dict__.values())
        else:
            array = value if type(value) is np.ndarray else np.asarray(to_numpy(value))
            if array.dtype.kind in "fcOmM":
                yield array


def _batch(rows: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Nested dicts of arrays as a Batch; the leading axis gets the shape of the indices."""
    if isinstance(rows, dict):
        return Batch({name: _batch(part, shape) for name, part in rows.items()})
    return rows if shape is None else rows.reshape(*shape, *rows.shape[1:])


def _specs(value: Any, kind: Any) -> Any:
    if isinstance(value, dict):
        return {name: _specs(part, kind) for name, part in value.items()}
    return ArraySpec(value.shape[1:], value.dtype, kind=kind)
