"""Devices that ResourceClaims have which Tessera did not allocate. Pure."""

import re
from collections.abc import Iterable
from typing import Any

from tessera.binder.devices.decide.pools import PoolKey
from tessera.binder.devices.decide.reach import UnreadableSlice
from tessera.binder.devices.decide.slices import milli
from tessera_schemas.base import Json
from tessera_schemas.cluster.device_layouts import DEVICES_MAX, TakenDevice
from tessera_schemas.cluster.labels import RUN_ANNOTATION, RUN_LABEL

_ID = re.compile(r"[a-z0-9.-]+/[a-z0-9./-]+")
TAKEN_MAX = 4 * DEVICES_MAX


def taken_by(claim: Json) -> dict[PoolKey, tuple[TakenDevice, ...]]:
    """
    Devices that a claim has, by pool.

    Admin access takes nothing. A share of unknown size takes the whole device.
    """
    found: dict[PoolKey, list[TakenDevice]] = {}
    for result in _results(claim):
        driver, pool, device = (result.get(name) for name in ("driver", "pool", "device"))
        if result.get("adminAccess") is True or not (type(driver) is type(pool) is type(device) is str):
            continue
        name = f"{driver}/{pool}/{device}"
        if _ID.fullmatch(name) and len(name) <= 384:
            taken = TakenDevice(device=name, capacity=_consumed(result.get("consumedCapacity")))
            found.setdefault((str(driver), str(pool)), []).append(taken)
    return {key: tuple(devices) for key, devices in found.items()}


def run_of(claim: Json) -> str:
    """The run of ours that the claim was made or allocated for; "" for none. The mark may outlive the run."""
    meta = claim["metadata"]
    mark = (meta.get("annotations") or {}).get(RUN_ANNOTATION) or (meta.get("labels") or {}).get(RUN_LABEL)
    return mark if type(mark) is str else ""


def list_taken(devices: Iterable[TakenDevice]) -> tuple[TakenDevice, ...]:
    """The devices of a node in one order; more than a fact can name are left out, and then none is free anyway."""
    return tuple(sorted(devices, key=lambda each: (each.device, sorted(each.capacity.items()))))[:TAKEN_MAX]


def _results(claim: Json) -> list[Json]:
    at: Any = claim
    for name in ("status", "allocation", "devices", "results"):
        at = at.get(name) if type(at) is dict else None
    return [each for each in at if type(each) is dict] if type(at) is list else []


def _consumed(capacity: Any) -> dict[str, int]:
    if type(capacity) is not dict:
        return {}
    try:
        return {str(name): milli(amount, up=True) for name, amount in sorted(capacity.items())[:32]}
    except UnreadableSlice:
        return {}
