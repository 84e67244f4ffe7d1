"""
DCGM's counters of a node's GPUs, read into what is wrong with them. Pure; times are whole seconds of one clock.

Of a counter only its rise between two looks counts, never where it stands: a counter that falls has begun anew, and a
first look tells nothing. An XID that a reset alone ends stands for as long as its exporter goes on. Values that are no
numbers, negative or absurd say nothing, and of one node no more than `DEVICES_MAX` devices are heard.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tessera.reclamation.health.damping import Sighting
from tessera.reclamation.health.xids import XIDS
from tessera_schemas.cluster.health import Ailment, HealthCause

LAST_XID, COUNTED_XIDS = "DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_COUNT"
REMAP_FAILURE = "DCGM_FI_DEV_ROW_REMAP_FAILURE"
SLOWED = ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
"""Bits of why clocks are low, by the exporter's version."""
SLOWED_BITS = {0x8: "hardware slowdown", 0x20: "heat, by software", 0x40: "heat", 0x80: "power brake"}
"""Those that tell of a fault; an idle GPU, a power cap and set clocks do not."""


@dataclass(frozen=True, slots=True)
class ErrorCounter:
    """Meaning of a counter's rise, from `per_minute` on."""

    cause: HealthCause
    meaning: str
    per_minute: int = 0


_NVLINK = "DCGM_FI_DEV_NVLINK_{}_ERROR_COUNT_TOTAL"
COUNTERS: dict[str, ErrorCounter] = {
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ErrorCounter(HealthCause.GPU_MEMORY, "double-bit ECC errors"),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ErrorCounter(HealthCause.GPU_MEMORY, "rows remapped for lasting errors"),
    _NVLINK.format("CRC_FLIT"): ErrorCounter(HealthCause.LINK_ERRORS, "NVLink CRC errors", 6000),
    _NVLINK.format("CRC_DATA"): ErrorCounter(HealthCause.LINK_ERRORS, "NVLink CRC errors of data", 6000),
    _NVLINK.format("REPLAY"): ErrorCounter(HealthCause.LINK_ERRORS, "NVLink retries", 60),
    _NVLINK.format("RECOVERY"): ErrorCounter(HealthCause.LINK_ERRORS, "NVLink recoveries"),
}
METRICS = (LAST_XID, COUNTED_XIDS, REMAP_FAILURE, *SLOWED, *COUNTERS)
"""All that is read; a metric that an exporter does not serve says nothing."""
DEVICES_MAX = 64
VALUE_MAX = 2**53
_NAME_MAX = 128

HealthSamples = Iterable[tuple[str, Mapping[str, str], str]]
"""Metric, labels and value, as sources write them."""


@dataclass(slots=True)
class _GpuLook:
    """Last look at a device: its counters, and XIDs that stand."""

    counters: dict[str, int] = field(default_factory=dict)
    standing: dict[int, None] = field(default_factory=dict)


class GpuCounters:
    """The last look at each node's devices, in memory only: after a restart counters have to rise again."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[int, dict[str, _GpuLook]]] = {}

    def look(self, node: str, samples: HealthSamples, now: int) -> list[Sighting]:
        """Faults of the node's GPUs by the samples of one look."""
        looked, before = self._nodes.get(node, (now, {}))
        devices: dict[str, _GpuLook] = {}
        found: list[Sighting] = []
        for device, values in _by_device(samples).items():
            last, seen = before.get(device), _GpuLook({name: values[name] for name in COUNTERS if name in values})
            found += [_sight(device, *told) for told in _standing(values)]
            found += [_sight(device, *told, at_once=True) for told in _xids(values, last, seen)]
            found += [_sight(device, *told, at_once=True) for told in _risen(seen, last, now - looked)]
            devices[device] = seen
        self._nodes[node] = now, devices
        return found

    def forget(self, nodes: Iterable[str]) -> None:
        """Forgets nodes that are no more."""
        for node in nodes:
            self._nodes.pop(node, None)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that have been looked at."""
        return tuple(self._nodes)


CauseAndWords = tuple[HealthCause, str]


def _sight(device: str, cause: HealthCause, evidence: str, at_once: bool = False) -> Sighting:
    return Sighting(Ailment(cause=cause, device=device, evidence=evidence), at_once)


def _by_device(samples: HealthSamples) -> dict[str, dict[str, int]]:
    """Values by device and metric, of several the highest; counted XIDs by their number."""
    found: dict[str, dict[str, int]] = {}
    for name, labels, text in samples:
        device, value = _device_of(labels), _whole(text)
        if name not in METRICS or device is None or value is None or (device not in found and _is_full(found)):
            continue
        key = f"{name} {labels.get('xid', '')}" if name == COUNTED_XIDS else name
        values = found.setdefault(device, {})
        values[key] = max(value, values.get(key, 0))
    return found


def _is_full(found: Mapping[str, object]) -> bool:
    return len(found) >= DEVICES_MAX


def _device_of(labels: Mapping[str, str]) -> str | None:
    """The card: its UUID or, where there is none, its number; errors of a MIG instance are its card's."""
    name = labels.get("UUID") or (f"gpu {labels['gpu']}" if labels.get("gpu") else "")
    return name if name and len(name) <= _NAME_MAX and name.isprintable() else None


def _whole(text: str) -> int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if 0 <= value < VALUE_MAX else None


def _standing(values: Mapping[str, int]) -> list[CauseAndWords]:
    """Faults that are so as long as they are shown."""
    bits = max(values.get(name, 0) for name in SLOWED)
    why = [meaning for bit, meaning in SLOWED_BITS.items() if bits & bit]
    return [(HealthCause.GPU_THROTTLED, f"clocks are lowered: {', '.join(why)}")] if why else []


def _xids(values: Mapping[str, int], last: _GpuLook | None, seen: _GpuLook) -> list[CauseAndWords]:
    """
    XIDs of this look. The exporter shows the last one until the next, or until it begins anew, whatever became of the
    GPU: a number that was there before is news only if a reset alone ends what it tells.
    """
    now = values.get(LAST_XID, 0)
    if now:
        seen.standing = dict(last.standing) if last is not None else {}
        seen.standing[now] = None
    changed = last is not None and now not in last.standing
    shown = [xid for xid in seen.standing if (known := XIDS.get(xid)) and (known.stays or (xid == now and changed))]
    prefix = f"{COUNTED_XIDS} "
    for key, count in values.items():
        number = key.removeprefix(prefix)
        if key.startswith(prefix) and count and number.isdecimal() and len(number) <= 4:
            shown.append(int(number))
    found = [(XIDS[xid].cause, f"XID {xid}: {XIDS[xid].meaning}") for xid in dict.fromkeys(shown) if xid in XIDS]
    failed = [(HealthCause.GPU_MEMORY, "no spare memory rows are left")] if values.get(REMAP_FAILURE) else []
    return found + failed


def _risen(seen: _GpuLook, last: _GpuLook | None, seconds: int) -> list[CauseAndWords]:
    found: list[CauseAndWords] = []
    for name, value in seen.counters.items():
        counter, before = COUNTERS[name], value if last is None else last.counters.get(name, value)
        rise = value - before
        if rise > 0 and rise * 60 >= counter.per_minute * seconds:
            found.append((counter.cause, f"{rise} {counter.meaning} in {seconds} s"))
    return found
