"""Memory for the bytes of a file, whose length a damaged save may have made up."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from relive.errors import StorageFull

__all__ = ["memory_for"]


@contextlib.contextmanager
def memory_for(num_bytes: int) -> Iterator[None]:
    """Refuses a block that takes more memory than the machine has, before and while the block takes it.

    The system promises more memory than it has, and kills the process that uses it. A file with holes can be of any
    length on any disk, so the length of the file is no bound.

    Raises:
        StorageFull: The machine has less memory.
    """
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if num_bytes > has:
        raise StorageFull("memory", num_bytes, has)
    try:
        yield
    except (MemoryError, OSError) as error:  # OSError: of a mapping
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        raise StorageFull("memory", num_bytes, has) from error
