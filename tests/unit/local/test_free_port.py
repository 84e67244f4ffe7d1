"""Ports for servers that are started again: nobody else may be given them meanwhile."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tessera.kernel.errors import StartupError
from tessera_local import free_port as module
from tessera_local.free_port import LOOPBACK, choose_ports, free_port, is_free
from tessera_local.platform import Platform
from tessera_local.up import up
from tessera_schemas.shard.services import SERVICES

OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


def given_back() -> int:
    port = free_port()
    module._kept.pop().close()
    return port


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
    taken, free = free_port(), given_back()
    with socket.create_server((LOOPBACK, taken)):
        monkeypatch.setattr(module, "_candidates", iter([taken, free]))
        assert free_port() == free


def test_a_port_that_another_process_was_given_is_passed_over_before_anybody_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asks = "from tessera_local.free_port import free_port; print(free_port(), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", asks], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        theirs, free = int(other.stdout.readline()), given_back()
        monkeypatch.setattr(module, "_candidates", iter([theirs, free]))
        assert free_port() == free
        other.communicate(b"\n")
    monkeypatch.setattr(module, "_candidates", iter([theirs]))
    assert free_port() == theirs  # theirs has ended


def test_when_all_are_taken_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_candidates", iter([]))
    with pytest.raises(OSError, match=r"every port of 127\.0\.0\.1 from 20000 to 29999 is taken"):
        free_port()


def test_ports_stay_the_same_from_one_start_to_the_next(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    first = choose_ports(file, ("main", "other"))
    assert len({*first.values()}) == 2
    assert choose_ports(file, ("main", "other")) == first
    with socket.create_server((LOOPBACK, first["main"])):
        moved = choose_ports(file, ("main", "other"))
        assert moved["main"] != first["main"]
        assert moved["other"] == first["other"]
        with pytest.raises(StartupError, match=f"port {first['main']}: another program listens there"):
            choose_ports(file, ("main",), first["main"])
    wanted = next(port for port in iter(free_port, None) if is_free(port + 1))
    assert choose_ports(file, ("main", "other"), wanted) == {"main": wanted, "other": wanted + 1}


async def test_a_missing_server_is_told_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESSERA_REDIS_SERVER", str(tmp_path / "nothing"))
    with pytest.raises(StartupError, match="TESSERA_REDIS_SERVER"):
        async with Platform(tmp_path / "home", services=()):
            pytest.fail("it started")
    assert not (tmp_path / "home" / "logs").exists()


async def test_up_says_at_once_what_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_REDIS_SERVER", str(tmp_path / "nothing"))
    said: list[str] = []
    with pytest.raises(StartupError):
        await up(tmp_path / "home", notify=said.append)
    assert said == [f"starting in {tmp_path / 'home'}: NATS, Redis, a simulated cluster, and {len(SERVICES)} services"]
