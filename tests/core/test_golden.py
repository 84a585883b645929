"""A region file of format version 14, written once: every later version of the library reads it alike."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest
from processes.shm import needs_shared_memory

from core.make_golden import EXPECTED, HERE, REGION, read_region
from relive import ArraySpec, StepSpec, Table, _core, errors

pytestmark = needs_shared_memory


def unpack(folder: Path) -> str:
    path = folder / "relive-golden"
    path.write_bytes(lzma.decompress(REGION.read_bytes()))
    return str(path)


def test_the_golden_region_says_what_it_always_said(tmp_path: Path) -> None:
    with np.load(EXPECTED) as expected:
        keys = expected["keys"]
        said = read_region(unpack(tmp_path), keys)
        assert set(said) == set(expected.files) - {"keys"}
        for name, values in said.items():
            if name.endswith("probabilities"):  # a quotient may be rounded the other way
                np.testing.assert_allclose(values, expected[name], rtol=1e-12, err_msg=name)
            else:
                np.testing.assert_array_equal(values, expected[name], err_msg=name)
        assert expected["gather0/present"].sum() > 150


def test_the_golden_region_can_be_written_on(tmp_path: Path) -> None:
    """The writer of the region is dead: a process that attaches cuts its lane, and continues."""
    from core.tools import write_rows

    path = unpack(tmp_path)
    table = _core.attach_table(path, False, 0, 5.0)
    assert table.metadata == b"golden"
    table.check()
    keys = write_rows(table, 5000, 50)
    assert table.gather(table.select(0, ["action"]), keys, None)[0][0].tolist() == list(range(5000, 5050))
    table.check()
    table.close()
    assert not Path(path).exists()


def test_a_region_of_format_3_is_refused_by_name_and_version(tmp_path: Path) -> None:
    path = tmp_path / "relive-old"
    path.write_bytes(lzma.decompress((HERE / "format3.region.xz").read_bytes()))
    for read_only in (False, True):
        with pytest.raises(errors.FormatMismatch) as caught:
            _core.attach_table(str(path), read_only, 0, 1.0)
        assert (caught.value.what, caught.value.expected, caught.value.got) == ("format version", 14, 3)
        assert "format version is 3, this build reads 14" in str(caught.value)
    assert path.exists()  # nothing of it was touched: the version that made it can still read it


def test_the_page_on_the_format_is_of_this_version() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "format.md"
    if not page.exists():
        pytest.skip("the pages lie beside the tests in the source tree only")
    with Table(StepSpec({"a": ArraySpec((), "int64")}), 10) as table:
        version = table.core.geometry["format_version"]
    assert page.read_text(encoding="utf-8").splitlines()[0] == f"# The region format, version {version}"
