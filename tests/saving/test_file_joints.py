"""Tables that live in folders, beside draws, streams and folders of saves."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

import relive
import relive.checkpoint
from relive import errors
from relive.saving.folder import SaveFolder
from relive.saving.place import Place
from saving.test_file import add, opened


def some(table: relive.Table) -> list[list[int]]:
    return [table.sample(16)["action"].tolist() for _ in range(2)]


def test_a_save_that_is_loaded_into_a_folder_draws_on(tmp_path: Path) -> None:
    with opened(tmp_path / "table") as table:
        add(table, 200)
        some(table)
        table.save(tmp_path / "save")
        expected = some(table)
    with relive.load(tmp_path / "save", storage=relive.File(tmp_path / "other")) as loaded:
        assert some(loaded) == expected


@pytest.mark.parametrize("attached", [False, True])
def test_a_table_that_is_built_from_its_save_draws_on(tmp_path: Path, attached: bool) -> None:
    with opened(tmp_path / "table") as table:
        add(table, 200)
        some(table)
        table.sync()
        expected = some(table)
        again = tmp_path / "again"
        subprocess.run(["cp", "-r", tmp_path / "table", again], check=True)
        with relive.attach(relive.File(again)) if attached else opened(again) as built:
            assert built.stream == 0 and some(built) == expected


def test_a_stream_is_that_of_the_caller_whichever_process_builds_the_table(tmp_path: Path) -> None:
    with opened(tmp_path / "table") as table:
        add(table, 200)
    (tmp_path / "table" / "region").unlink()
    storage = relive.File(tmp_path / "table")
    with relive.attach(storage, stream=5) as five, relive.attach(storage, stream=0) as zero:
        assert (five.stream, zero.stream) == (5, 0) and some(five) != some(zero)
        assert five.loaded is not None and five.loaded.core is five.core
        add(five, 10, 200)
    with opened(tmp_path / "table") as table:
        assert len(table) == 210
        table.check()


def test_a_folder_of_saves_is_no_home_of_a_table(tmp_path: Path) -> None:
    """A table that lived there would replace the saves, and the learner beside them."""
    with opened(tmp_path / "table") as table:
        add(table, 20)
        for number in range(2):
            relive.checkpoint.save(tmp_path / "run", table=table, learner={"number": number}, keep=2)
        names = sorted(path.name for path in (tmp_path / "run").iterdir())
        with pytest.raises(errors.InvalidConfig, match="a folder of saves"):
            opened(tmp_path / "run")
        with pytest.raises(errors.InvalidConfig, match="a folder of saves"):
            relive.load(tmp_path / "run", storage=relive.File(tmp_path / "run"))
        with pytest.raises(errors.NoSuchTable):
            relive.attach(relive.File(tmp_path / "run"))
        assert sorted(path.name for path in (tmp_path / "run").iterdir()) == names
        assert relive.saved(tmp_path / "run").kept == (2, 1)
        assert relive.checkpoint.load_learner(tmp_path / "run") == {"number": 1}
        table.save(tmp_path / "run")


def test_two_processes_that_make_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second finds a folder with a table in it, after it found none."""
    folder, real = str(tmp_path / "table"), SaveFolder.open
    table: list[relive.Table] = []

    def late(path: str, *more: Any, **options: Any) -> SaveFolder:
        monkeypatch.setattr(SaveFolder, "open", real)
        maker = threading.Thread(target=lambda: table.append(opened(Path(folder))))
        maker.start()
        maker.join()
        return real(path, *more, **options)

    monkeypatch.setattr(SaveFolder, "open", late)
    with opened(Path(folder)) as other:
        add(table[0], 3)
        assert len(other) == 3 and Place.of(folder).region == other.path
    table[0].close()
