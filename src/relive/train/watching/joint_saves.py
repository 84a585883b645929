"""Lets the hosts of a run save at one update, and finds the newest save that all hosts have.

Protocol, with the words that hosts exchange before each update (learners/host_group.py, rule H1):

  S1  The first host says that a checkpoint is due. Each host that hears it opens a save of its own table.
  S2  Each host says whether it can make its cut: its save is open, and the one before is complete.
  S3  All hosts make their cut at the first word at which all can, before the update. So the cuts are of one update. By
      then the save before is complete on all hosts.
  S4  A save has the name of its moment: the session, which the first host names by chance, and the number of updates.
      The last saves of a session have a name, too: hosts that end together end at one update.
  S5  Hosts that resume compare the names of the saves that they keep (KEPT of them: the last common one, the one that a
      host may lack, and the last of a session). All go on from the newest common one. If there is none, each goes on
      from its own newest, and the learner is that of the first host. The saves of the first host that are older than
      its newest checkpoint of the learner alone do not count: the run has learned more since.
  S6  The first save of a session forgets those that are later than the one that the session goes on from. So that one
      stays, however often hosts end before their next save.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

KEPT = 3  # saves that a host keeps


@final
class JointSaves:
    """The words of one host about saves, and those that it hears. One thread uses it.

    Attributes:
        session: Name of the session by rule S4; "" before the first host has said it.
        kept: Numbers of the saves of this host that count for this session, the newest first.
    """

    def __init__(self, *, is_first: bool) -> None:
        self.session = ""
        self.kept: list[int] = []
        self._is_first = is_first
        self._is_asked = self._is_begun = False
        self._cut: Callable[[], None] | None = None

    def name(self, num_updates: int) -> str:
        """Returns the name of a save at this number of updates."""
        return f"{self.session}-{num_updates}"

    @property
    def staying(self) -> frozenset[int]:
        """The numbers of the saves that stay beside the next one: rules S5 and S6."""
        return frozenset(self.kept[: KEPT - 1])

    def committed(self, number: int) -> None:
        """Notes the number of a save that is complete."""
        self.kept = [number, *self.kept]

    def begins(self, is_due: bool) -> bool:
        """Whether to open a save now: rule S1. True once for each save."""
        if self._is_begun:
            self._is_begun = False
            return True
        self._is_asked = self._is_asked or (is_due and self._is_first)
        return False

    def can_cut(self, cut: Callable[[], None]) -> None:
        """Tells that the cut can be made, by calling `cut`: rule S2."""
        self._cut = cut

    def word(self) -> tuple[int, int]:
        """Returns whether a save is due, and minus whether the cut can be made. Hosts take the largest of each."""
        return int(self._is_asked), -int(self._cut is not None)

    def hear(self, is_due: int, cannot: int) -> None:
        """Hears the words of all hosts. Makes the cut if all can: rule S3."""
        if is_due:
            self._is_asked, self._is_begun = False, True
        if cannot == -1 and self._cut is not None:
            cut, self._cut = self._cut, None
            cut()


def newest_common(names: Sequence[Sequence[str]]) -> str | None:
    """Returns the newest name that all hosts have: rule S5. names: of each host, the newest first."""
    first, *others = names
    return next((name for name in first if all(name in one for one in others)), None)
