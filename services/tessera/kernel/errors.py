"""
The four ways in which the world says no. A "no" of a decision is a value, never one of these.

The kernel's two loops answer each of them; see `follow` and `work`. Adapters raise them `from` the client's error.
"""


class KernelError(Exception):
    """Base of the four; never raised itself."""


class Conflict(KernelError):
    """A compare-and-swap was lost: read the tail again and decide anew; the old bytes are never resent."""


class RolledOver(Conflict):
    """Records that were not read yet have left the ledger by a roll-over: begin anew, from a snapshot."""


class Transient(KernelError):
    """A store, the bus or an API is away for now: try again later with back-off."""


class Full(Transient):
    """A stream refuses more messages, bytes, or messages of one subject: certainly not stored; tell the sender."""


class Denied(Transient):
    """A store refuses our name or password, or the bus our request: it stays so until somebody mends them."""


class UnknownOutcome(Transient):
    """A write may or may not have happened: look for it before deciding anything; never resend it."""


class Poison(KernelError):
    """Input that can never be handled (cannot be decoded, unknown version): dead-letter it and go on."""


class InvariantViolation(KernelError):
    """The books contradict themselves: halt this shard, stay up, be not ready, decide nothing, never guess."""


class StartupError(Exception):
    """A missing or wrong part at start-up. Its text is one line: what, where, and how to fix it."""
