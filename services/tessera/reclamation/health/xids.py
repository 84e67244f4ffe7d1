"""
NVIDIA's XID errors: which of them tell of a sick GPU, and of what cause. A table.

Meanings follow NVIDIA's published catalogue for Ampere and later. An XID that the catalogue puts down to the program
(13, 31, 43, 45 and most others), or that needs nothing done (63, 92), is not in the table: a user's bug takes no node
out. Numbers that the table does not know say nothing, for the same reason.
"""

from dataclasses import dataclass

from tessera_schemas.cluster.health import HealthCause

FAULT, MEMORY, LINKS = HealthCause.GPU_FAULT, HealthCause.GPU_MEMORY, HealthCause.LINK_ERRORS


@dataclass(frozen=True, slots=True)
class Xid:
    """Meaning of an XID. `stays`: a reset or a reboot alone ends it, and its exporter begins anew with either."""

    meaning: str
    cause: HealthCause
    stays: bool = False


XIDS: dict[int, Xid] = {
    46: Xid("GPU stopped processing", FAULT, stays=True),
    48: Xid("double-bit ECC error", MEMORY, stays=True),
    54: Xid("auxiliary power not connected", FAULT, stays=True),
    62: Xid("micro-controller halted", FAULT, stays=True),
    64: Xid("remapping of a memory row failed", MEMORY, stays=True),
    74: Xid("NVLink error", LINKS, stays=True),
    79: Xid("GPU has fallen off the bus", HealthCause.GPU_LOST, stays=True),
    94: Xid("contained memory error", MEMORY),
    95: Xid("uncontained memory error", MEMORY, stays=True),
    109: Xid("context switch timed out", FAULT),
    110: Xid("security fault", FAULT, stays=True),
    119: Xid("GSP did not answer", FAULT, stays=True),
    120: Xid("GSP error", FAULT, stays=True),
    136: Xid("training of a link failed", LINKS, stays=True),
    140: Xid("unrecovered ECC error", MEMORY, stays=True),
    143: Xid("GPU initialisation failed", FAULT, stays=True),
    156: Xid("part of the GPU retired, active after a reset", FAULT),
    158: Xid("GPU timed out fatally", FAULT, stays=True),
    171: Xid("uncorrectable error of DRAM", MEMORY, stays=True),
    172: Xid("uncorrectable error of SRAM", MEMORY, stays=True),
}
