"""The bytes of a region as kernels see them: one address, and the number of frames that the device may read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, final

import torch

from relive import _core
from relive.errors import ForkedHandle, ReliveError
from relive.gpu.layout_args import RegionLayout

__all__ = ["DeviceFailure", "HostRegistration", "RegionView", "Span"]

PORTABLE, MAPPED, READ_ONLY = 1, 2, 8  # flags of cudaHostRegister
MEMORY_PAGE = 4096  # bytes; memory is pinned, and committed by the table, in whole pages


@final
class DeviceFailure(ReliveError, RuntimeError):
    """A call of the device's driver failed. `what` names the call. `code` is the driver's number."""

    def __init__(self, what: str, code: int) -> None:
        self.what = what
        self.code = code
        super().__init__(
            f"{what} failed with CUDA error {code}; where it is memory that cannot be pinned, raise the limit of locked"
            " memory (ulimit -l) or make the table smaller"
        )


class Span(NamedTuple):
    """The region during one call: its address, and how many frames and start cells the device can read."""

    address: int
    mapped_frames: int
    mapped_cells: int = 0


@final
class HostRegistration:
    """Registers host memory with CUDA, so that kernels read the memory in place at its host address (zero-copy).

    The owner of the object calls `unregister` for each range. Until then the driver keeps the range in memory. Every
    method raises DeviceFailure if the driver refuses the call.

    Args:
        cudart: torch.cuda.cudart().
        read_only: whether the memory is mapped read-only. Default: False.
    """

    def __init__(self, cudart: Any, read_only: bool = False) -> None:
        self._cudart = cudart
        self._flags = PORTABLE | MAPPED | (READ_ONLY if read_only else 0)

    def register(self, address: int, num_bytes: int) -> None:
        """Pins and maps a range.

        Cost: the parts of the range that are not in memory are brought into memory first.
        """
        self._check("cudaHostRegister", self._cudart.cudaHostRegister(address, num_bytes, self._flags))

    def unregister(self, address: int) -> None:
        """Releases a range. No kernel may be reading the range."""
        self._check("cudaHostUnregister", self._cudart.cudaHostUnregister(address))

    @staticmethod
    def _check(what: str, result: Any) -> None:
        if int(result) != 0:
            raise DeviceFailure(what, int(result))


@final
class RegionView:
    """A table's region for kernels: mapped during each call, and registered with the device as far as it is committed.

    The region grows frame by frame, and is registered in pieces as it grows. To register uncommitted memory would make
    the driver allocate the table's whole capacity at once. A kernel that meets a frame beyond the registered frames
    reports the item as changed, and the item is read again in the next round.

    Args:
        core: the table.
        layout: the layout of its region.
        registration: registers memory with the device. None: kernels run on the host (Triton's interpreter).
        device: if it is a CUDA device, it is torch's current device during a call.
    """

    def __init__(
        self,
        core: _core.CoreTable,
        layout: RegionLayout,
        registration: HostRegistration | None,
        device: torch.device | None = None,
    ) -> None:
        self._device = device if device is not None and device.type == "cuda" else None
        self._core = core
        self._layout = layout
        self._registration = registration
        self._pieces: list[int] = []
        self._address = 0
        self._registered: dict[int, int] = {}  # bytes from each start that have grown so far

    @contextmanager
    def held(self) -> Iterator[Span]:
        """A context that gives the region for one call. The table's `close` waits for the end of the context.

        Raises:
            TableClosed: the table is closed.
            ForkedHandle: the process is a fork of the one that made the reader.
        """
        current = nullcontext() if self._device is None else torch.cuda.device(self._device)
        with current, _core.PinnedRegion(self._core) as hold:
            frames, cells = hold.frames_committed, hold.cells_committed
            if self._registration is not None:
                self._register(hold.address, 0, self._layout.end_of_frames(frames))
                self._register(hold.address, self._layout.cells_offset, cells * self._layout.cell_stride)
            yield Span(hold.address, frames, cells)

    def close(self) -> None:
        """Unregisters all memory. A second call does nothing. The table must still be open."""
        while self._pieces:
            assert self._registration is not None
            self._registration.unregister(self._pieces.pop())
        self._registered.clear()

    def _register(self, address: int, start: int, num_bytes: int) -> None:
        assert self._registration is not None
        if self._pieces and address != self._address:
            raise ForkedHandle("a device reader")
        self._address = address
        num_bytes = -(-num_bytes // MEMORY_PAGE) * MEMORY_PAGE
        before = self._registered.get(start, 0)
        if num_bytes <= before:
            return
        piece = address + start + before
        self._registration.register(piece, num_bytes - before)
        self._pieces.append(piece)
        self._registered[start] = num_bytes


def registration_for(device: torch.device, read_only: bool) -> HostRegistration | None:
    """Returns the registration for a device. None for the host, whose kernels read the memory as it is."""
    cudart: Any = torch.cuda.cudart
    return HostRegistration(cudart(), read_only) if device.type == "cuda" else None
