"""
HAMi's annotations: its device plugin writes them on nodes and reads them on pods. Pure.

Its kubelet plugin gives a pod the cards, memory and cores that annotations of the pod name. It serves the pod that the
node's lock names, one at a time: the binder takes the lock first, and the plugin gives it back. The annotations are
written with the bind, since HAMi's webhook refuses them on a pod that is being made. Source: HAMi 2.9,
docs/develop/protocol.md, pkg/util/nodelock and pkg/util/util.go (GetPendingPod).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

NODE_ANNOTATION = "hami.io/node-nvidia-register"
LOCK_ANNOTATION = "hami.io/mutex.lock"
LOCK_EXPIRES = timedelta(minutes=5)
MEMORY_RESOURCE = "nvidia.com/gpumem"  # MiB of each card
CORES_RESOURCE = "nvidia.com/gpucores"  # per cent of each card
MIB = 2**20


@dataclass(frozen=True, slots=True, order=True)
class Card:
    """One GPU as the plugin registers it. Cards are in the order of their UUIDs: the plugin's own order changes."""

    uuid: str
    memory_mib: int
    healthy: bool
    mode: str


@dataclass(frozen=True, slots=True)
class Lock:
    """Lock of a node: the only pod that its plugin serves, by namespace and name, and since when."""

    since: datetime
    pod: tuple[str, str]


def read_cards(text: str) -> tuple[Card, ...]:
    """Cards in the node's annotation: JSON, or the comma-separated fields of older plugins. () when unreadable."""
    try:
        found = _parse_json(orjson.loads(text)) if text.startswith("[") else _parse_fields(text)
    except (ValueError, LookupError, TypeError, AttributeError):
        return ()
    return tuple(sorted(found))


def _parse_json(cards: list[dict[str, Any]]) -> list[Card]:
    return [
        Card(str(card["id"]), int(card["devmem"]), card.get("health", False) is True, card.get("mode") or "hami-core")
        for card in cards
    ]


def _parse_fields(text: str) -> list[Card]:
    """UUID, split count, memory, cores, type, NUMA node, health and, since 2.5, index and mode."""
    rows = [row.split(",") for row in text.split(":") if row]
    return [Card(row[0], int(row[2]), row[6] == "true", row[8] if len(row) > 8 else "hami-core") for row in rows]


def amounts(cards: int, milli: int, card_memory_bytes: int) -> dict[str, int]:
    """Requests of the container: so many cards, and this memory and these cores of each."""
    memory_mib, cores = _split_card(milli, card_memory_bytes)
    return {"nvidia.com/gpu": cards, MEMORY_RESOURCE: memory_mib, CORES_RESOURCE: cores}


def _split_card(milli: int, card_memory_bytes: int) -> tuple[int, int]:
    """Rounded down, so that what shares a card never has more than the card; HAMi takes 0 cores for no limit."""
    return card_memory_bytes // MIB * milli // 1000, max(1, milli // 10)


def bind_annotations(
    node: str, uuids: Sequence[str], milli: int, card_memory_bytes: int, now: datetime
) -> dict[str, str]:
    """Annotations by which HAMi's plugin finds the devices of a pod with one container."""
    memory_mib, cores = _split_card(milli, card_memory_bytes)
    devices = "".join(f"{uuid},NVIDIA,{memory_mib},{cores}:" for uuid in uuids) + ";"
    seconds = str(int(now.timestamp()))
    return {
        "hami.io/vgpu-node": node,
        "hami.io/vgpu-time": seconds,
        "hami.io/bind-time": seconds,
        "hami.io/bind-phase": "allocating",
        "hami.io/vgpu-devices-to-allocate": devices,
        "hami.io/vgpu-devices-allocated": devices,
    }


def lock_for(namespace: str, pod: str, now: datetime) -> str:
    """Text of a node's lock for one pod: the time in UTC, the namespace and the pod's name."""
    return f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ},{namespace},{pod}"


def lock_in(annotations: Mapping[str, str], now: datetime) -> Lock | None:
    """The node's lock; None when there is none, it cannot be read or it has expired."""
    locked_at, _, rest = annotations.get(LOCK_ANNOTATION, "").partition(",")
    namespace, _, pod = rest.partition(",")
    try:
        since = datetime.fromisoformat(locked_at)
        return None if now - since > LOCK_EXPIRES else Lock(since, (namespace, pod))
    except (ValueError, TypeError):
        return None
