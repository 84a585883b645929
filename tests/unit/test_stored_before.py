"""stored_before returns the keys that relive put on an exception. An attribute `keys` of another type is no key."""

from typing import Any

import numpy as np
import pytest

from relive import errors


class Another(Exception):
    """An exception of a user's signal handler."""

    def __init__(self, keys: Any) -> None:
        super().__init__()
        self.keys = keys


@pytest.mark.parametrize("keys", [dict().keys, ["a"], "abc", 7, None, np.array(["a"]), np.zeros(3)])
def test_other_attributes_of_that_name_are_no_keys(keys: Any) -> None:
    assert errors.stored_before(Another(keys)).tolist() == []


def test_keys_of_rows_that_were_stored() -> None:
    assert errors.stored_before(Another(np.array([[3], [5]]))).tolist() == [3, 5]
    assert errors.stored_before(KeyError("x")).tolist() == []
