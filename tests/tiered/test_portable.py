"""Where the core was built without Linux's system calls there is no Tiered, and it says so."""

from __future__ import annotations

from pathlib import Path

import pytest

import relive
from relive import errors
from tiered.tools import IS_PORTABLE


@pytest.mark.skipif(not IS_PORTABLE, reason="this build has Tiered")
def test_the_portable_build_has_no_tiers(tmp_path: Path) -> None:
    spec = relive.StepSpec({"blob": relive.ArraySpec((20_000,), "uint8")})
    with pytest.raises(errors.SystemFailure) as raised:
        relive.Table(spec, 100, storage=relive.Tiered(tmp_path, "10MB"), max_lanes=1)
    assert "not in this build" in raised.value.what
