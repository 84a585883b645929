"""The protocol of the parts that a run consists of: each starts, is watched, and stops. No part is defined here."""

from __future__ import annotations


class Part:
    """A part of a running session: its actors, its learners, its server. One thread calls it, that of `train`.

    The run calls `start` once, `watch` about four times a second, and `stop` once, also after a failure and where it
    was never started. A part overrides the methods that it needs; the others do nothing.
    """

    @property
    def num_restarts(self) -> int:
        """Times that processes of the part were started again."""
        return 0

    def start(self) -> None:
        """Begins the work of the part. Options that cannot be met were refused before, when the part was made."""

    def watch(self) -> None:
        """Looks after the part: starts dead processes again, or raises the error that ends the run."""

    def stop(self) -> None:
        """Ends the work: no process and no thread of the part is left, and its memory is given back."""
