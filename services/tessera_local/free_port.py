"""
Free ports of the loopback, for servers that are told theirs and keep it when they start again.

A port that the system picks (port 0) is one of those that it also gives to connections going out. Between our look and
the server's, or while a server is down, such a connection may take it; a client that calls a dead port there again and
again may even reach itself. The ports given here lie below all of those. Until its server listens, and while it is
down, a port is kept from other processes by the UDP socket of its number, which ends with us.
"""

import itertools
import json
import random
import socket
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from tessera.kernel.errors import StartupError

LOOPBACK = "127.0.0.1"
PORTS = range(20_000, 30_000)  # outgoing connections: 32768 and up on Linux, 49152 and up elsewhere

_candidates = itertools.cycle(random.SystemRandom().sample(PORTS, len(PORTS)))
_kept: deque[socket.socket] = deque()


def free_port() -> int:
    """One that nobody listens on or was given lately, here or elsewhere. Raises OSError when all are taken."""
    for port in itertools.islice(_candidates, len(PORTS)):
        if is_free(port) and _keep(port):
            return port
    raise OSError(f"every port of {LOOPBACK} from {PORTS.start} to {PORTS.stop - 1} is taken; end some servers")


def choose_ports(file: Path, names: Sequence[str], first: int = 0) -> dict[str, int]:
    """
    A port for each name: `first` and those behind it, else those of the last time where they are free, else free ones.

    `file` keeps them for the next time. Raises StartupError when a port that was asked for is taken.
    """
    if first:
        ports = {name: first + at for at, name in enumerate(names)}
        if taken := [port for port in ports.values() if not is_free(port)]:
            raise StartupError(f"port {taken[0]}: another program listens there; choose another one")
    else:
        try:
            last = json.loads(file.read_text())
        except (OSError, ValueError):
            last = {}
        ports = {name: port if (port := last.get(name, 0)) and is_free(port) else free_port() for name in names}
    file.write_text(json.dumps(ports))
    return ports


def is_free(port: int) -> bool:
    """Tells whether nobody listens on a port of the loopback now."""
    with socket.socket() as probe:
        # As servers do: what a server that ended has left behind is not in their way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _keep(port: int) -> bool:
    # Whether no other process has it, and this one has it now.
    _kept.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    try:
        _kept[-1].bind((LOOPBACK, port))
    except OSError:
        _kept.pop().close()
        return False
    if len(_kept) > 256:  # descriptors; a platform needs a dozen ports
        _kept.popleft().close()
    return True
