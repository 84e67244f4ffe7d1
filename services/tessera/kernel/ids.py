"""Random names and secrets. Everything that must be the same after a repeat is derived by a hash instead, elsewhere."""

import secrets


def instance_id(service: str) -> str:
    """The name of one process of a service, new at every start: `binder-1f0c9a2b`."""
    return f"{service}-{secrets.token_hex(4)}"


def transaction_id() -> str:
    """Transaction id (128 bits) that a committer looks for at the tail after an append with an unknown outcome."""
    return secrets.token_hex(16)


def random_key() -> str:
    """An idempotency key for a client that has none of its own; printed before it is used."""
    return secrets.token_hex(16)


def trace_id() -> str:
    """A W3C trace id, 32 hexadecimal digits."""
    return secrets.token_hex(16)


def password() -> str:
    """A password or bearer token of 256 bits; hexadecimal, so that no configuration format has to quote it."""
    return secrets.token_hex(32)


def run_key() -> bytes:
    """The key of a run, 256 bits, by which its pods know one another."""
    return secrets.token_bytes(32)
