"""
The address of a connection or a request: its peer's, or behind a trusted proxy the one that the proxy names.

A proxy appends the address that it sees to X-Forwarded-For, behind whatever its client wrote there. So the header is
read from its right end, and only from trusted peers; no other header is read, since it would be the client's own.
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

LIMIT, HEADER = "connections_per_address", "X-Forwarded-For"
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
        self._settings, self._measures, self._open = settings, measures, Counter[str]()

    def is_proxy(self, address: str) -> bool:
        """Whether what connects from here speaks for others."""
        found = ip_address(address.partition("%")[0])
        return any(found.version == each.version and found in each for each in self._settings.trusted_proxies)

    def client(self, request: web.Request) -> str:
        """The nearest address that is no trusted proxy's; behind what is no address, the proxy that wrote it."""
        address = request.remote or ""
        hops = ",".join(request.headers.getall(HEADER, [])).split(",")
        while hops and self.is_proxy(address):
            hop = hops.pop().strip()
            text = hop.partition(":")[0] if hop.count(":") == 1 else hop.removeprefix("[").partition("]")[0]
            try:
                address = str(ip_address(text))
            except ValueError:
                break
        return address

    @contextmanager
    def counting(self, request: web.Request) -> Iterator[None]:
        """Behind a proxy an open request counts as a connection. Raises Refusal for one too many."""
        if not request.remote or not self.is_proxy(request.remote):
            yield
            return
        address, at_most = counted(self.client(request)), self._settings.connections_per_address
        if self._open[address] >= at_most:
            self._measures.turned_away.labels(LIMIT).inc()
            raise refused(Code.RATE_LIMITED, LIMIT, "too many requests of this address are open", {"open": at_most})
        self._open[address] += 1
        try:
            yield
        finally:
            self._open[address] -= 1
            self._open += Counter()  # without those that have none
