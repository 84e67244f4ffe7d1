"""
Whose a connection or a request is: its peer's, or behind a proxy that is trusted the address that the proxy names.

A proxy appends the address that it sees to a header, behind whatever its client wrote there. So the header is read from
its right end, only from trusted peers, and only the one header that these write: any other is the client's own.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address, ip_network

from aiohttp import web

from tessera.gateway.entrance.problems import refused
from tessera.gateway.measures import Measures
from tessera.gateway.settings import GatewaySettings
from tessera_schemas.reasons import Code

LIMIT = "connections_per_address"
CUSTOMER_BITS = 64


def counted(address: str) -> str:
    """The address as it counts: of IPv6 the network of 64 bits that one machine has for itself. Raises ValueError."""
    found = ip_address(address.partition("%")[0])
    if not isinstance(found, IPv6Address):
        return str(found)
    return str(found.ipv4_mapped or ip_network((found, CUSTOMER_BITS), strict=False))


class Addresses:
    """Reads addresses behind trusted proxies, and counts requests of each that are open there."""

    def __init__(self, settings: GatewaySettings, measures: Measures) -> None:
        self._proxies, self._header = settings.trusted_proxies, settings.forwarded_header
        self._most, self._measures = settings.connections_per_address, measures
        self._open = Counter[str]()

    def is_proxy(self, address: str) -> bool:
        """Whether what connects from here speaks for others."""
        found = ip_address(address.partition("%")[0])
        return any(found.version == each.version and found in each for each in self._proxies)

    def client(self, request: web.Request) -> str:
        """The nearest address that is no trusted proxy's; behind what is no address, the proxy that wrote it."""
        address = request.remote or ""
        hops = [hop for line in request.headers.getall(self._header, []) for hop in line.split(",")]
        while hops and self.is_proxy(address):
            named = self._named(hops.pop())
            if named is None:
                break
            address = named
        return address

    @contextmanager
    def counting(self, request: web.Request) -> Iterator[None]:
        """Behind a proxy an open request counts as a connection. Raises Refusal for one too many."""
        if not self._proxies or not self.is_proxy(request.remote or ""):
            yield
            return
        address = counted(self.client(request))
        if self._open[address] >= self._most:
            self._measures.turned_away.labels(LIMIT).inc()
            raise refused(Code.RATE_LIMITED, LIMIT, "too many requests of this address are open", {"open": self._most})
        self._open[address] += 1
        try:
            yield
        finally:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]

    def _named(self, hop: str) -> str | None:
        """The address that a hop of the header names, with or without a port; None where it names none."""
        text = hop.strip()
        if self._header == "Forwarded":
            pairs = (pair.partition("=") for pair in text.split(";"))
            text = next((value.strip().strip('"') for name, _, value in pairs if name.strip().lower() == "for"), "")
        if text.startswith("["):
            text = text[1:].partition("]")[0]
        elif text.count(":") == 1:
            text = text.partition(":")[0]
        try:
            return str(ip_address(text))
        except ValueError:
            return None
