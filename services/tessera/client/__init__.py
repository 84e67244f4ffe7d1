"""
Interface for people and programs: the SDK (`Tessera`) and the `tessera` command.

In: a job spec, a configuration, questions. Out: commands on `submit.<shard>.<tenant>` and `control.<shard>`; answers
from the private inbox; events of durable subscribers. Reading: the shared views as the operator, and the ledger, which
is folded here for `explain` and `replay`. Guarantee: a command is repeated under the same key until it is stored, and
an error is one sentence that says what, where, and how to mend it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tessera.client.outcomes import Failure, Refused, Submitted
    from tessera.client.sending.sdk import Tessera
    from tessera.client.sending.sync_sdk import SyncTessera, submit
    from tessera.kernel.errors import StartupError, Transient

PLACES = {
    "Failure": "tessera.client.outcomes",
    "Refused": "tessera.client.outcomes",
    "StartupError": "tessera.kernel.errors",
    "Submitted": "tessera.client.outcomes",
    "SyncTessera": "tessera.client.sending.sync_sdk",
    "Tessera": "tessera.client.sending.sdk",
    "Transient": "tessera.kernel.errors",
    "submit": "tessera.client.sending.sync_sdk",
}
__all__ = ["Failure", "Refused", "StartupError", "Submitted", "SyncTessera", "Tessera", "Transient", "submit"]


def __getattr__(name: str) -> Any:
    """The SDK is imported when one of its names is: most commands do without."""
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(PLACES[name]), name)
