"""numpy's .npz: one file of arrays, for which nothing but numpy is needed.

| array | shape |
|---|---|
| columns/<name> of kind step or start | [N, ...] |
| columns/<name> of kind state | [N + E, ...]: each episode has one row more, the state after its last step |
| columns/<name> of kind episode | [E, ...] |
| steps/discount, steps/policy_version | [N] |
| episodes/length, episodes/terminated, episodes/truncated | [E] |
| relive | a text: the columns |

N is the number of steps, E the number of episodes. The rows of the episodes lie end to end.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, final

import numpy as np
import numpy.typing as npt

from relive.adapters.errors import DatasetUnreadable
from relive.adapters.formats.recorded import Recorded, described, episode_of, spec_of
from relive.config.spec import StepSpec
from relive.reading.episodes import Episode

__all__ = ["read", "write"]

_COPIED = 1 << 22  # bytes at a time


@final
class _Spool:
    """One array that grows on the disk, because its header needs the number of its rows."""

    def __init__(self, folder: Path, number: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._file: IO[bytes] = open(folder / str(number), "w+b")  # noqa: SIM115 - closed by copy_to
        self._dtype = dtype
        self._shape = shape
        self._num_rows = 0

    def add(self, rows: npt.NDArray[Any]) -> None:
        """Adds rows [n, ...]."""
        self._num_rows += len(rows)
        self._file.write(np.ascontiguousarray(rows, self._dtype).data.cast("B") if rows.size else b"")

    def copy_to(self, archive: zipfile.ZipFile, name: str) -> None:
        """Writes the whole array into the archive."""
        self._file.seek(0)
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (self._num_rows, *self._shape),
        }
        with self._file as file, archive.open(f"{name}.npy", "w", force_zip64=True) as to:
            np.lib.format.write_array_header_2_0(to, header)
            while some := file.read(_COPIED):
                to.write(some)


def write(path: str, spec: StepSpec, episodes: Iterable[Episode]) -> None:
    """Writes the file, compressed. Needs room for the uncompressed arrays on the disk of temporary files."""
    with tempfile.TemporaryDirectory() as name:
        folder, spools = Path(name), dict[str, _Spool]()
        facts = {"steps/discount": "<f4", "steps/policy_version": "<i8", "episodes/length": "<i8"}
        facts |= {"episodes/terminated": "|b1", "episodes/truncated": "|b1"}
        for column, one in spec.columns.items():
            spools[f"columns/{column}"] = _Spool(folder, len(spools), one.dtype, one.shape)
        for fact, dtype in facts.items():
            spools[fact] = _Spool(folder, len(spools), np.dtype(dtype), ())
        for episode in episodes:
            for column, array in episode.flat().items():
                rows = array[None] if spec.columns[column].kind == "episode" else array
                spools[f"columns/{column}"].add(rows)
            spools["steps/discount"].add(episode.discount)
            spools["steps/policy_version"].add(episode.policy_version)
            spools["episodes/length"].add(np.array([len(episode)]))
            spools["episodes/terminated"].add(np.array([episode.terminated]))
            spools["episodes/truncated"].add(np.array([episode.truncated]))
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for key, spool in spools.items():
                spool.copy_to(archive, key)
            with archive.open("relive.npy", "w") as to:
                np.lib.format.write_array(to, np.array(described(spec)))


def read(path: str) -> Recorded:
    """Reads a file that write() wrote. Takes the memory of all steps while episodes are read."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            if "relive" not in archive:
                raise DatasetUnreadable(path, "a file that relive exported", ", ".join(archive.files[:8]))
            spec = spec_of(path, str(archive["relive"]))
            lengths = archive["episodes/length"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as problem:
        if isinstance(problem, (FileNotFoundError, DatasetUnreadable)):
            raise
        raise DatasetUnreadable(path, "an .npz file that relive exported", str(problem)) from None
    return Recorded(spec, len(lengths), int(lengths.sum()), lambda: _episodes(path, spec))


def _episodes(path: str, spec: StepSpec) -> Iterator[Episode]:
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[f"columns/{name}"] for name in spec.columns}
        facts = {name: archive[name] for name in archive.files if name.startswith(("steps/", "episodes/"))}
    begin = 0
    for number, length in enumerate(facts["episodes/length"].tolist()):
        steps = slice(begin, begin + length)
        states = slice(begin + number, begin + number + length + 1)
        places = {"episode": number, "state": states}
        flat = {name: np.asarray(array[places.get(spec.columns[name].kind, steps)]) for name, array in arrays.items()}
        yield episode_of(
            spec,
            flat,
            facts["episodes/terminated"][number],
            facts["episodes/truncated"][number],
            facts["steps/discount"][steps],
            facts["steps/policy_version"][steps],
        )
        begin += length
