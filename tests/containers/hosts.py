"""
Hosts with networks of their own on one machine: what runs on one reaches the other by its address, as over a wire.

    with apart() as hosts, ControlPlane(folder, address=WIRE.address, kubelets_at=[h.address for h in hosts]) as plane:
        with Node(plane, one, 4, host=hosts[0]), Node(plane, other, 4, host=hosts[1]):
            ...

Each is a network namespace: its interfaces, routes and pods' bridge are nobody else's, and pods of two hosts are in
different subnets, routed by the hosts. The control plane and the names of pods stay with the machine, a third host on
the wire.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.containers.node import Host, Network, bridge, run_command
from tests.kubernetes import identities

WIRE = Network("tessera-wire", "10.231.9")
BITS = 24


@contextmanager
def apart() -> Iterator[tuple[Host, ...]]:
    """As many hosts as there are names of nodes, on one wire. Raises NoNode."""
    hosts = tuple(
        Host(name, Network("pods", f"10.231.{10 + n}"), f"{WIRE.numbers}.{10 + n}", WIRE.address, f"tessera-{name}")
        for n, name in enumerate(identities.NODE_NAMES)
    )
    with bridge(WIRE), ExitStack() as spaces:
        for host in hosts:
            spaces.enter_context(_space(host))
        for host in hosts:
            for other in hosts:
                if other is not host:
                    _route(other, "-n", host.space)
            _route(host)
        yield hosts


@contextmanager
def _space(host: Host) -> Iterator[None]:
    """The network namespace, with one end of a cable of which the other is on the wire."""
    run_command("ip", "netns", "del", host.space, check=False)  # there if a run before us was killed
    run_command("ip", "netns", "add", host.space)
    try:
        inside = ("ip", "-n", host.space)
        run_command("ip", "link", "add", host.name, "type", "veth", "peer", "name", "eth0", "netns", host.space)
        run_command("ip", "link", "set", host.name, "master", WIRE.bridge, "up")
        run_command(*inside, "address", "add", f"{host.address}/{BITS}", "dev", "eth0")
        for device in ("lo", "eth0"):
            run_command(*inside, "link", "set", device, "up")
        yield
    finally:
        run_command("ip", "netns", "del", host.space)


def _route(to: Host, *where: str) -> None:
    """Pods of a host are reached through it."""
    run_command("ip", *where, "route", "replace", f"{to.pods.numbers}.0/{BITS}", "via", to.address)
