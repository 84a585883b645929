"""Minari: makes a table from a dataset, and a dataset from a table.

    table = relive.from_minari("D4RL/door/human-v2")          # or a MinariDataset
    dataset = table.to_minari("my/pendulum-v0", env="Pendulum-v1")

Columns of a table that are not observation, action and reward are infos of the dataset, with discounts and policy
versions among them. A table that comes back from such a dataset has the same columns and values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.adapters.errors import DatasetUnreadable
from relive.adapters.formats.recorded import Recorded, described, episode_of, spec_of
from relive.adapters.transfer import Progress, new_table
from relive.checks.names import names_arguments
from relive.config.spec import ArraySpec, StepSpec, nest
from relive.core.protocol import ReplayTable
from relive.errors import InvalidConfig, MissingPackage
from relive.errors.extras import install_command
from relive.reading.episodes import Episode
from relive.table.table import Table

try:
    import gymnasium
    import minari
    from minari.data_collector import EpisodeBuffer
except ImportError as _problem:
    raise MissingPackage("Minari", str(_problem.name), install_command("minari")) from _problem

__all__ = ["from_minari", "to_minari"]

_MAIN = ("observation", "action", "reward")


@names_arguments
def from_minari(
    dataset: Any,
    *,
    infos: Sequence[str] = (),
    capacity: int | str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Table:
    """Makes a table from a dataset of Minari.

    Args:
        dataset: a MinariDataset, or the id of a local one.
        infos: names of infos that become step columns, 'a/b' for nested ones. An info of T + 1 values begins with that
            of the reset, which is left out. A dataset that to_minari made brings its own columns.
        capacity: steps of the table; None: as many as are imported.
        progress: called after each episode with the episodes and the steps so far.
        **options: index=, storage=, max_lanes= and the other arguments of relive.Table.

    Returns:
        The table. Its columns are observation, action and reward as in StepSpec.from_spaces, the reward in the dtype
        of the dataset, and the infos.

    Raises:
        SpecError: a space is none that a table can store, such as Text.
        DatasetUnreadable: an episode does not fit the spaces, or has no such info.
        ReliveError: the errors of relive.Table and of Writer.extend.
    """
    opened = minari.load_dataset(dataset) if isinstance(dataset, str) else dataset
    if not isinstance(opened, minari.MinariDataset):
        raise InvalidConfig("dataset", "a MinariDataset, or the id of one", type(dataset).__name__)
    name = str(opened.spec.dataset_id)
    told = opened.storage.metadata.get("relive")
    spec = spec_of(name, told) if told else _spec(name, opened, infos)

    def episodes() -> Iterator[Episode]:
        for one in opened.iterate_episodes():
            yield _episode(name, spec, one, is_ours=bool(told))

    recorded = Recorded(spec, int(opened.total_episodes), int(opened.total_steps), episodes)
    return new_table(recorded, capacity, progress, options)


@names_arguments
def to_minari(
    table: ReplayTable,
    dataset_id: str,
    *,
    env: Any = None,
    observation_space: gymnasium.Space[Any] | None = None,
    action_space: gymnasium.Space[Any] | None = None,
    **more: Any,
) -> Any:
    """Makes a local dataset of Minari from the whole episodes of a table.

    Args:
        table: a table with the columns observation, action and reward.
        dataset_id: the id, such as 'namespace/name-v0'.
        env: the environment, its id or its EnvSpec; None: the spaces are those of the columns, without bounds.
        observation_space: None: that of the environment.
        action_space: None: that of the environment.
        **more: further arguments of minari.create_dataset_from_buffers, such as algorithm_name=.

    Returns:
        The MinariDataset. Images are stored as they are, not as JPEG.

    Raises:
        InvalidConfig: the table lacks one of the three columns, or has no whole episode.
        ValueError: Minari refuses the id.
    """
    spec = table.spec
    tops = {name.partition("/")[0] for name in spec.columns}
    if not tops.issuperset(_MAIN):
        raise InvalidConfig("columns of a table for Minari", ", ".join(_MAIN), ", ".join(sorted(tops)))
    if env is None:
        observation_space = observation_space or _space(spec, "observation")
        action_space = action_space or _space(spec, "action")
    episodes = table.episodes()
    first = next(episodes, None)
    if first is None:
        raise InvalidConfig("a table for Minari", "at least one whole episode", "none")
    dataset = minari.create_dataset_from_buffers(
        dataset_id,
        [_buffer(first)],
        env=env,
        observation_space=observation_space,
        action_space=action_space,
        **{"jpeg_encoding": False, **more},
    )
    dataset.storage.update_metadata({"relive": described(spec)})
    dataset.storage.update_episodes(map(_buffer, episodes))
    return minari.MinariDataset(dataset.storage)


# ---- from a table --------------------------------------------------------------------------------------------------


def _buffer(episode: Episode) -> Any:
    last = np.arange(len(episode)) == len(episode) - 1
    infos: dict[str, Any] = {"discount": episode.discount, "policy_version": episode.policy_version}
    for name, array in episode.flat().items():
        if name.partition("/")[0] not in _MAIN:
            is_once = episode.spec.columns[name].kind == "episode"
            infos[name] = np.repeat(array[None], len(episode), 0) if is_once else array
    return EpisodeBuffer(
        observations=episode["observation"],
        actions=episode["action"],
        rewards=episode["reward"],
        terminations=last & episode.terminated,
        truncations=last & episode.truncated,
        infos=nest(infos, lambda path: False),
    )


def _space(spec: StepSpec, top: str) -> gymnasium.Space[Any]:
    """The space of a column or group, without bounds."""

    def made(node: Any) -> gymnasium.Space[Any]:
        if isinstance(node, tuple):
            return gymnasium.spaces.Tuple([made(part) for part in node])
        if isinstance(node, Mapping):
            return gymnasium.spaces.Dict({name: made(part) for name, part in node.items()})
        return _box(node)

    return made(nest(dict(spec.columns), spec.is_tuple)[top])


def _box(column: ArraySpec) -> gymnasium.Space[Any]:
    kind = column.dtype.kind
    if kind == "b":
        return gymnasium.spaces.MultiBinary(column.shape) if column.shape else gymnasium.spaces.Box(0, 1, (), np.bool_)
    dtype: Any = column.dtype.type
    if kind in "iu":
        bounds = np.iinfo(dtype)
        return gymnasium.spaces.Box(bounds.min, bounds.max, column.shape, dtype)
    return gymnasium.spaces.Box(-np.inf, np.inf, column.shape, dtype)


# ---- to a table ----------------------------------------------------------------------------------------------------


def _spec(name: str, dataset: Any, infos: Sequence[str]) -> StepSpec:
    base = StepSpec.from_spaces(dataset.observation_space, dataset.action_space).to_dict()
    first = next(iter(dataset.iterate_episodes()), None)
    if first is None:
        raise DatasetUnreadable(name, "at least one episode", "none")
    base["columns"]["reward"]["dtype"] = np.asarray(first.rewards).dtype.name
    for path in infos:
        array = _info(name, first, path)
        node = base["columns"]
        *groups, leaf = path.split("/")
        for group in groups:
            node = node.setdefault(group, {})
        node[leaf] = {"shape": list(array.shape[1:]), "dtype": array.dtype.name}
    return StepSpec.from_dict(base)


def _info(name: str, one: Any, path: str) -> npt.NDArray[Any]:
    value: Any = one.infos
    for part in path.split("/"):
        if not isinstance(value, Mapping) or part not in value:
            raise DatasetUnreadable(name, f"the info {path!r}", list(value) if isinstance(value, Mapping) else value)
        value = value[part]
    return np.asarray(value)


def _episode(name: str, spec: StepSpec, one: Any, is_ours: bool) -> Episode:
    count = len(one.rewards)
    found: dict[str, npt.NDArray[Any]] = {}
    for top, value in (("observation", one.observations), ("action", one.actions), ("reward", one.rewards)):
        _flatten(top, value, found)
    flat = {}
    for path, column in spec.columns.items():
        array = found.get(path)
        rows = count + (column.kind == "state")
        if array is None:
            array = _info(name, one, path)
            if not is_ours and len(array) == count + 1:
                array = array[1:]
        if len(array) != rows or array.size != rows * int(np.prod(column.shape)):
            raise DatasetUnreadable(name, f"{rows} values {column!r} of {path!r} in episode {one.id}", array.shape)
        array = np.asarray(array).astype(column.dtype, casting="same_kind", copy=False)
        array = array.reshape((rows, *column.shape))
        flat[path] = array[0] if column.kind == "episode" else array
    facts = [_info(name, one, path) for path in ("discount", "policy_version")] if is_ours else [None, None]
    terminated, truncated = bool(one.terminations[-1]), bool(one.truncations[-1])
    return episode_of(spec, flat, terminated, truncated or not terminated, facts[0], facts[1])


def _flatten(path: str, value: Any, into: dict[str, npt.NDArray[Any]]) -> None:
    if isinstance(value, Mapping):
        for key, part in value.items():
            _flatten(f"{path}/{key}", part, into)
    elif isinstance(value, tuple):
        for number, part in enumerate(value):
            _flatten(f"{path}/{number}", part, into)
    else:
        into[path] = np.asarray(value)
