"""
Addresses that a webhook may reach: public ones, and what the operator allows.

The check is made on each address that a socket is about to connect to, after names were resolved: a name that
resolves to something else the next moment, or an address in a disguise, gets nowhere.
"""

import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

Network = IPv4Network | IPv6Network
_PROTOCOLS = IPv4Network("192.0.0.0/24")
"""IETF protocol assignments, which Python's releases judge differently."""
_NOT_PUBLIC = (
    IPv4Network("168.63.129.16/32"),  # Azure's own services of each machine
    IPv6Network("3fff::/20"),  # documentation, which Python knows from 3.13 on
)
_NAT64 = IPv6Network("64:ff9b::/96")


class AddressRefused(OSError):
    """An address that webhooks must not reach."""


def is_reachable(text: str, allowed: Sequence[Network]) -> bool:
    """Whether a webhook may connect to this address."""
    address = _inner(ip_address(text.partition("%")[0]))
    if any(address.version == network.version and address in network for network in allowed):
        return True
    if any(address.version == network.version and address in network for network in _NOT_PUBLIC):
        return False
    if address in _PROTOCOLS or (isinstance(address, IPv6Address) and address.is_site_local):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def checked_sockets(allowed: Sequence[Network]) -> Callable[[Any], socket.socket]:
    """Factory of sockets for resolved addresses; it raises AddressRefused for one that is not reachable."""

    def make(info: Any) -> socket.socket:
        family, kind, protocol, _, where = info
        if family not in (socket.AF_INET, socket.AF_INET6) or not is_reachable(str(where[0]), allowed):
            raise AddressRefused(f"{where[0]} is not a public address, and the operator has not allowed it")
        return socket.socket(family, kind, protocol)

    return make


def _inner(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 address stands for, where it stands for one."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else address)
