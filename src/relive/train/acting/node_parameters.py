"""Shares the newest parameters among the actor processes of a node, which fetch each version once together.

One process, the *leader*, pulls the parameters from the run and publishes them on a board in anonymous shared memory.
The others, the *followers*, map the board. Protocol:

  N1  The leader is the process that listens at an abstract Unix socket of a name that the actors of the node were told.
      The kernel lets one process listen there, and frees the name when that process ends, however it ends.
  N2  A follower connects, and receives the descriptors of the board and of the leader's news (SCM_RIGHTS). Both sides
      refuse a process of another user. The connection stays open: its end tells a follower that the leader is gone.
  N3  A follower that has lost its leader tries to lead, then to follow the new leader.
  N4  A follower whose leader has had no news from the run for too long, or that finds no leader, pulls for itself.

No name is left in a file system, and the kernel frees the memory with the last process that maps it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import struct
import time
from collections.abc import Mapping
from typing import final

import numpy as np
from numpy.typing import NDArray

from relive.core.closing import Closing
from relive.core.ending import start_thread
from relive.service import Published
from relive.train.memory.parameters import ParameterBoard, ParameterLayout, ParameterReader
from relive.train.memory.shared_block import SharedBlock

_WAIT_S = 1.0  # for the other side of a connection, which answers at once
_FACTS = ""  # name of the four float32 that are the bits of two int64: the version, and the steps of the run
_NEWS_BYTES = 8


def _hello(layout: ParameterLayout) -> bytes:
    """The bytes that a leader sends with the descriptors: a digest of the names and shapes of its parameters."""
    return hashlib.sha256(repr(layout.shapes).encode()).digest()


def _with_facts(published: Published) -> dict[str, NDArray[np.float32]]:
    facts = np.array([published.version, int(published.about.get("num_steps", 0))], np.int64)
    return {**published.arrays, _FACTS: facts.view(np.float32)}


def _without_facts(values: Mapping[str, NDArray[np.float32]]) -> Published:
    version, num_steps = values[_FACTS].view(np.int64).tolist()
    arrays = {name: value for name, value in values.items() if name != _FACTS}
    return Published(version, arrays, {"num_steps": num_steps})


def _is_own(line: socket.socket) -> bool:
    """Whether the process at the other end belongs to the same user."""
    found = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", found)
    return bool(user == os.geteuid())


def _has_ended(line: socket.socket) -> bool:
    """Whether the other end of a connection that does not block is closed. The other side sends nothing."""
    try:
        return not line.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True


@final
class _Leader(Closing):
    """The leader's side: it owns the socket, the connections, the board and the news."""

    def __init__(self, listener: socket.socket, first: Published) -> None:
        self._listener = listener
        self._lines: list[socket.socket] = []
        layout = ParameterLayout.of(_with_facts(first))
        self._hello = _hello(layout)
        self._board = ParameterBoard(layout)
        self._news_block = SharedBlock(_NEWS_BYTES)
        self._news = self._news_block.array(np.float64, (1,))
        self.publish(first)
        self.hear()
        self._thread = start_thread(self._accept_all, "relive-node-parameters", never_writes=True)

    def publish(self, published: Published) -> None:
        """Publishes a version on the board."""
        self._board.publish(_with_facts(published))

    def hear(self) -> None:
        """Notes that the run has said just now which parameters are the newest."""
        self._news[0] = time.monotonic()

    def _accept_all(self) -> None:
        block = self._board.block
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:  # closed
                return
            self._drop_ended()
            self._lines.append(line)
            try:
                line.settimeout(_WAIT_S)
                if _is_own(line):
                    descriptors = [block.fileno(), self._news_block.fileno()]
                    socket.send_fds(line, [self._hello], descriptors)
                    line.setblocking(False)
                else:
                    line.close()
            except OSError:  # the follower is gone
                line.close()

    def _drop_ended(self) -> None:
        """Closes the connections of followers that have gone."""
        ended = [line for line in self._lines if _has_ended(line)]
        self._lines = [line for line in self._lines if line not in ended]
        for line in ended:
            line.close()

    def close(self) -> None:
        """Frees the name; followers find their connections closed."""
        try:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        except OSError:
            pass
        self._listener.close()
        self._thread.join(_WAIT_S)
        for line in self._lines:
            line.close()
        self._board.close()
        self._news_block.close()


@final
class _Follower(Closing):
    """A follower's side: it owns its connection and its views of the leader's memory."""

    def __init__(self, line: socket.socket, layout: ParameterLayout) -> None:
        """Receives the memory. Raises OSError if the other side is no leader of such parameters."""
        self._line = line
        expected, num_bytes = _hello(layout), ParameterBoard.num_bytes_of(layout)
        hello, descriptors, _, _ = socket.recv_fds(line, len(expected), 2)
        sizes = [os.fstat(one).st_size for one in descriptors]
        if hello != expected or len(sizes) != 2 or sizes[0] < num_bytes or sizes[1] < _NEWS_BYTES:
            for one in descriptors:
                os.close(one)
            raise OSError(errno.EPROTO, "no leader of these parameters")
        self._block = SharedBlock.of_file(descriptors[0], num_bytes)
        self._news_block = SharedBlock.of_file(descriptors[1], _NEWS_BYTES)
        self._news = self._news_block.array(np.float64, (1,))
        self._reader = ParameterReader(self._block, layout)
        line.setblocking(False)

    def poll(self) -> Published | None:
        """Returns a version that the leader has published since the last poll."""
        found = self._reader.poll()
        return None if found is None else _without_facts(found)

    @property
    def is_orphaned(self) -> bool:
        """Whether the leader is gone."""
        return _has_ended(self._line)

    def silent_s(self) -> float:
        """Returns the seconds since the leader's last news from the run."""
        return time.monotonic() - float(self._news[0])

    def close(self) -> None:
        """Leaves the leader."""
        self._line.close()
        self._block.close()
        self._news_block.close()


@final
class NodeParameters(Closing):
    """The parameters that the actors of a node share. The thread of a Feed uses it, and the acting thread polls it."""

    def __init__(self, name: str, first: Published, patience_s: float) -> None:
        """Leads or follows.

        Args:
            name: Name that the actors of this node, and no others, were told.
            first: The first parameters, pulled before.
            patience_s: Seconds without news after which a follower pulls for itself.
        """
        self._address = b"\0relive-parameters-" + hashlib.sha256(name.encode()).hexdigest()[:32].encode()
        self._layout = ParameterLayout.of(_with_facts(first))
        self._newest, self._patience_s = first, patience_s
        self._leader: _Leader | None = None
        self._follower: _Follower | None = None
        self._choose()

    @property
    def leads(self) -> bool:
        """Whether this process fetches the parameters for the others."""
        return self._leader is not None

    def follows(self) -> bool:
        """Whether another process fetches the parameters for this one now. Looks for a new leader (rule N3)."""
        if self._follower is not None and self._follower.is_orphaned:
            left, self._follower = self._follower, None
            left.close()
        if self._leader is None and self._follower is None:
            self._choose()
        return self._follower is not None and self._follower.silent_s() <= self._patience_s

    def heard(self, found: Published | None) -> None:
        """Takes the answer of a pull; None: there was no newer version. The leader hands it on."""
        if found is not None:
            self._newest = found
        if self._leader is not None:
            if found is not None:
                self._leader.publish(found)
            self._leader.hear()

    def poll(self) -> Published | None:
        """Returns a version that the leader has published since the last poll; None in the leader."""
        follower = self._follower
        found = None if follower is None else follower.poll()
        if found is not None:
            self._newest = found
        return found

    def _choose(self) -> None:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            line.bind(self._address)
            line.listen(64)
        except OSError:  # another process leads
            line.close()
            self._follow()
        else:
            self._leader = _Leader(line, self._newest)

    def _follow(self) -> None:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.settimeout(_WAIT_S)
        try:
            line.connect(self._address)
            if not _is_own(line):
                raise OSError(errno.EPERM, "a process of another user")
            self._follower = _Follower(line, self._layout)
        except OSError:  # it ended just now, or it does not answer: this process pulls for itself (rule N4)
            line.close()

    def close(self) -> None:
        """Ends leading or following."""
        for one in (self._leader, self._follower):
            if one is not None:
                one.close()
        self._leader = self._follower = None
