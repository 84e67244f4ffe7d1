"""
Interface for people and programs: the SDK (`Tessera`) and the `tessera` command.

In: a job spec, a configuration, questions. Out: commands on `submit.<shard>.<tenant>` and `control.<shard>`; answers
from the private inbox; events of durable subscribers. Reading: the shared views as the operator, and the ledger, which
is folded here for `explain` and `replay`. Guarantee: a command is repeated under the same key until it is stored, and
an error is one sentence that says what, where, and how to mend it.
"""

from tessera.client.sdk import Refused, Submitted, Tessera, submit

__all__ = ["Refused", "Submitted", "Tessera", "submit"]
