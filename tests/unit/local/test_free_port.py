"""Ports for servers that are started again: nobody else may be given them meanwhile."""

import socket
from pathlib import Path

import pytest

from tessera.local import free_port as module
from tessera.local.free_port import LOOPBACK, free_port

OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.mark.skipif(not OUTGOING.exists(), reason=f"no {OUTGOING} on this system, so its range is not known")
def test_no_outgoing_connection_is_given_such_a_port() -> None:
    first, last = map(int, OUTGOING.read_text().split())
    ports = [free_port() for _ in range(20)]
    if first < module.PORTS.stop:
        pytest.skip(f"this system gives outgoing connections the ports {first}-{last}, ours among them")
    assert all(port < first for port in ports)


def test_one_process_is_not_given_a_port_twice() -> None:
    ports = [free_port() for _ in range(200)]
    assert len(set(ports)) == 200


def test_a_port_that_somebody_listens_on_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, free = free_port(), free_port()
    with socket.create_server((LOOPBACK, taken)):
        monkeypatch.setattr(module, "_candidates", iter([taken, free]))
        assert free_port() == free


def test_when_all_are_taken_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_candidates", iter([]))
    with pytest.raises(OSError, match=r"every port of 127\.0\.0\.1 from 20000 to 29999 is taken"):
        free_port()
