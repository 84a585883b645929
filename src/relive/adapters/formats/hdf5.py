"""HDF5 in D4RL's layout: flat datasets of all steps, as D4RL, and the programs that read it, expect them.

| dataset | shape | column |
|---|---|---|
| observations, actions, rewards | [N, ...] | observation, action, reward; nested columns are groups |
| next_observations | [N, ...] | the observation after each step |
| terminals, timeouts | bool[N] | terminated and truncated; an episode ends where one of them is true |
| infos/<name> | [N, ...] | every other column; infos/next_<name> of other state columns |
| infos/discount, infos/policy_version | [N] | those of the steps |

The attribute `relive` of the file has the columns. A file without it is one of D4RL: its columns follow from its
datasets, numeric infos of [N, ...] among them. If such a file has no next_observations, the last step of an episode
that ended by a timeout is left out, because the state after it is not known; after a terminal step it is zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from relive.adapters.errors import DatasetUnreadable
from relive.adapters.formats.recorded import Recorded, described, episode_of, spec_of
from relive.config.spec import RESERVED_NAMES, ArraySpec, StepSpec
from relive.errors import MissingPackage
from relive.errors.extras import install_command
from relive.reading.episodes import Episode

try:
    import h5py
except ImportError as _problem:
    raise MissingPackage("HDF5", "h5py", install_command("hdf5")) from _problem

__all__ = ["read", "write"]

_CHUNK = 1024  # rows
_PLURALS = {"observation": "observations", "action": "actions", "reward": "rewards"}
_OF_STEPS = {"infos/discount": "<f4", "infos/policy_version": "<i8", "terminals": "|b1", "timeouts": "|b1"}

Arrays = dict[str, npt.NDArray[Any]]


def _place(column: str, following: bool = False) -> str:
    """The dataset of a column, or of the state after each step."""
    top, _, rest = column.partition("/")
    below = f"/{rest}" if rest else ""
    after = "next_" if following else ""
    return f"{after}{_PLURALS[top]}{below}" if top in _PLURALS else f"infos/{after}{column}"


def write(path: str, spec: StepSpec, episodes: Iterable[Episode]) -> None:
    """Writes the file, one episode after another."""
    with h5py.File(path, "x") as file:
        file.attrs["relive"] = described(spec)
        for name, one in spec.columns.items():
            for following in (False, True) if one.kind == "state" else (False,):
                _make(file, _place(name, following), one.dtype, one.shape)
        for name, dtype in _OF_STEPS.items():
            _make(file, name, np.dtype(dtype), ())
        end = 0
        for episode in episodes:
            begin, end = end, end + len(episode)
            for name, rows in _rows(spec, episode).items():
                dataset = file[name]
                dataset.resize(end, axis=0)
                dataset[begin:end] = rows


def _make(file: Any, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    rows = max(1, min(_CHUNK, (1 << 20) // max(1, dtype.itemsize * int(np.prod(shape)))))
    file.create_dataset(
        name, (0, *shape), dtype, maxshape=(None, *shape), chunks=(rows, *shape), compression="gzip", compression_opts=1
    )


def _rows(spec: StepSpec, episode: Episode) -> Arrays:
    count = len(episode)
    last = np.arange(count) == count - 1
    rows: Arrays = {
        "terminals": last & episode.terminated,
        "timeouts": last & episode.truncated,
        "infos/discount": episode.discount,
        "infos/policy_version": episode.policy_version,
    }
    for name, array in episode.flat().items():
        kind = spec.columns[name].kind
        rows[_place(name)] = np.broadcast_to(array, (count, *array.shape)) if kind == "episode" else array[:count]
        if kind == "state":
            rows[_place(name, True)] = array[1:]
    return rows


def read(path: str) -> Recorded:
    """Reads a file that write() wrote, or one of D4RL."""
    try:
        with h5py.File(path, "r") as file:
            is_ours = "relive" in file.attrs
            spec = spec_of(path, file.attrs["relive"]) if is_ours else _inferred(path, file)
            ends = _ends(path, file)
            has_next = all(_place(name, True) in file for name in spec.state_columns)
    except OSError as problem:
        if isinstance(problem, FileNotFoundError):
            raise
        raise DatasetUnreadable(path, "an HDF5 file", str(problem)) from None
    places = list(_places(ends, has_next))
    num_steps = sum(end - begin for begin, end, *_ in places)
    return Recorded(spec, len(places), num_steps, lambda: _episodes(path, spec, places, has_next))


def _ends(path: str, file: Any) -> npt.NDArray[np.bool_]:
    """bool[N, 2]: terminated and truncated of each step."""
    if "terminals" not in file:
        raise DatasetUnreadable(path, "the datasets observations, actions, rewards and terminals", sorted(file))
    terminals = np.asarray(file["terminals"]).astype(np.bool_).reshape(-1)
    timeouts = (
        np.asarray(file["timeouts"]).astype(np.bool_).reshape(-1) if "timeouts" in file else np.zeros_like(terminals)
    )
    if len(timeouts) != len(terminals):
        raise DatasetUnreadable(path, f"{len(terminals)} timeouts, one a step", len(timeouts))
    return np.stack((terminals, timeouts), 1)


def _places(ends: npt.NDArray[np.bool_], has_next: bool) -> Iterator[tuple[int, int, bool, bool]]:
    """(first step, end, terminated, truncated) of each episode that can be told whole."""
    are_last = ends.any(1)
    stops = (np.flatnonzero(are_last) + 1).tolist()
    if not stops or stops[-1] < len(ends):
        stops.append(len(ends))  # the recording stopped within an episode
    begin = 0
    for stop in stops:
        terminated = bool(ends[stop - 1, 0]) if stop else False
        truncated = not terminated or bool(ends[stop - 1, 1])
        end = stop if has_next or terminated else stop - 1
        if end > begin:
            yield begin, end, terminated, truncated
        begin = stop


def _inferred(path: str, file: Any) -> StepSpec:
    """The columns of a file that D4RL wrote."""
    flat: dict[str, Any] = {}
    for top, plural in _PLURALS.items():
        if plural not in file or not isinstance(file[plural], h5py.Dataset):
            raise DatasetUnreadable(path, f"a dataset {plural}", sorted(file))
        dataset = file[plural]
        shape = dataset.shape[1:] if top != "reward" else ()
        flat[top] = ArraySpec(shape, dataset.dtype, "state" if top == "observation" else "step")
    num_steps = len(file["rewards"])
    for name, dataset in file["infos"].items() if "infos" in file else ():
        is_column = isinstance(dataset, h5py.Dataset) and dataset.shape[:1] == (num_steps,)
        if not is_column or dataset.dtype.kind not in "biufc" or name in flat:
            continue
        if name in RESERVED_NAMES or name.startswith("next_") or name in ("done", "dones"):
            continue
        flat[name] = ArraySpec(dataset.shape[1:], dataset.dtype)
    return StepSpec(flat)


def _episodes(
    path: str, spec: StepSpec, places: list[tuple[int, int, bool, bool]], has_next: bool
) -> Iterator[Episode]:
    with h5py.File(path, "r") as file:
        for begin, end, terminated, truncated in places:
            flat = {name: _column(file, spec, name, (begin, end), has_next, terminated) for name in spec.columns}
            facts = {name: file[name][begin:end] for name in ("infos/discount", "infos/policy_version") if name in file}
            yield episode_of(
                spec, flat, terminated, truncated, facts.get("infos/discount"), facts.get("infos/policy_version")
            )


def _column(
    file: Any, spec: StepSpec, name: str, steps: tuple[int, int], has_next: bool, terminated: bool
) -> npt.NDArray[Any]:
    one, (begin, end) = spec.columns[name], steps
    dataset = file[_place(name)]
    rows = np.asarray(dataset[begin:end], one.dtype).reshape((end - begin, *one.shape))
    if one.kind == "episode":
        return cast("npt.NDArray[Any]", rows[0].copy())
    if one.kind != "state":
        return rows
    if has_next:
        last = np.asarray(file[_place(name, True)][end - 1 : end], one.dtype)
    else:
        last = np.zeros((1, *one.shape), one.dtype) if terminated else np.asarray(dataset[end : end + 1], one.dtype)
    return np.concatenate((rows, last.reshape((1, *one.shape))))
