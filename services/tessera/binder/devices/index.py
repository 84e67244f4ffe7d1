"""
Published devices by node, kept up with the watches of slices, claims and taint rules: which node offers what now.

A node's devices are read again when a slice of one of its pools, a claim on one, a rule, or one of its labels changes.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog

from tessera.binder.devices.decide.layouts import NO_LABELS, NodeDevices, OfferedLayout, TaintRule, lay_out
from tessera.binder.devices.decide.pools import PoolKey, PublishedPool, judge_pool
from tessera.binder.devices.decide.slices import Slice, SliceReader, read_taint
from tessera.binder.devices.decide.taken import list_taken, run_of, taken_by
from tessera.kernel.kubernetes.informer import Delta
from tessera_schemas.base import Json
from tessera_schemas.cluster.device_layouts import NodeOffer, TakenDevice

SLICE, TAKEN, RUN, RULE = "slice", "taken", "run", "rule"
"""Where a reduced object has what was read of it."""
NOTHING = NodeDevices()
DevicesTaken = dict[PoolKey, tuple[TakenDevice, ...]]
_IDENTITY = ("uid", "name", "namespace", "resourceVersion")

log = structlog.get_logger()


class DeviceIndex:
    """
    Objects that watches have shown; `take_…` gives the names of nodes of which something changed.

    `is_live`: whether the ledger knows what the run has, so that its claims are not another's.
    """

    def __init__(self, is_live: Callable[[str], bool] = lambda run_id: False) -> None:
        self.reader = SliceReader()
        self._is_live = is_live
        self._of_runs: dict[str, dict[str, Json]] = {}
        self.layouts: dict[str, OfferedLayout] = {}
        self._slices: dict[PoolKey, dict[str, Slice]] = {}
        self._pools: dict[PoolKey, PublishedPool] = {}
        self._pools_of: dict[str, dict[PoolKey, None]] = {}
        self._wide: dict[PoolKey, None] = {}
        """Pools of which slices say nodes by a selector, or all."""
        self._labels: dict[str, Mapping[str, str]] = {}
        self._taken: dict[PoolKey, dict[str, tuple[TakenDevice, ...]]] = {}
        self._rules: dict[str, TaintRule] = {}
        self._devices: dict[str, NodeDevices] = {}
        self._offers: dict[str, NodeOffer] = {}

    def devices(self, node: str) -> NodeDevices:
        """Devices of the node; the same object until something of them changes."""
        if node not in self._pools_of:
            return NOTHING
        found = self._devices.get(node)
        if found is None:
            pools = [self._pool(key) for key in self._pools_of[node]]
            rules = [self._rules[uid] for uid in sorted(self._rules)]
            found = lay_out(node, pools, rules, self._labels.get(node, NO_LABELS))
            for name, why in found.missing:
                log.warning("pool_not_offered", node=node, pool=name, reason=why)
            if (offered := found.offered) is not None:
                self.layouts.setdefault(offered.digest, offered)
            self._devices[node] = found
        return found

    def offer(self, node: str) -> NodeOffer:
        """Devices as the node's fact says them; the same object until something of it changes."""
        found = self._offers.get(node)
        if found is None:
            devices = self.devices(node)
            claims = [claim for key in self._pools_of.get(node, ()) for claim in self._taken.get(key, {}).values()]
            found = self._offers[node] = NodeOffer(
                layout="" if devices.offered is None else devices.offered.digest,
                tainted=devices.tainted,
                taken=list_taken(one for claim in claims for one in claim),
                missing=tuple(name for name, _ in devices.missing),
            )
        return found

    def forget_unused(self) -> None:
        """Forget layouts and shapes that no node has any more."""
        used = {found.offered.digest for found in self._devices.values() if found.offered is not None}
        self.layouts = {digest: offered for digest, offered in self.layouts.items() if digest in used}
        self.reader.keep_only(each for slices in self._slices.values() for each in slices.values())

    def take_slices(self, deltas: Iterable[Delta]) -> list[str]:
        """Takes in changes of slices."""
        changed: dict[str, None] = {}
        for delta in deltas:
            uid = delta.object["metadata"]["uid"]
            for one in (delta.old, delta.object):
                if one is not None and (found := one[SLICE]) is not None:
                    changed |= self._hold(uid, found, delta.type != "DELETED" and one is delta.object)
        return list(changed)

    def take_claims(self, deltas: Iterable[Delta]) -> list[str]:
        """Takes in changes of claims."""
        changed: dict[PoolKey, None] = {}
        for delta in deltas:
            uid, now = delta.object["metadata"]["uid"], {} if delta.type == "DELETED" else delta.object
            if delta.old is not None and uid in (of_run := self._of_runs.get(delta.old[RUN], {})):
                del of_run[uid]
            if now and now[RUN]:
                self._of_runs.setdefault(now[RUN], {})[uid] = now
            changed |= self._have(uid, {} if delta.old is None else delta.old[TAKEN], self._taken_beside(now))
        return self._changed_nodes(changed)

    def take_runs(self, runs: Iterable[str]) -> list[str]:
        """Takes in that these runs began or ended: who has a claim that an ended one marked is somebody else."""
        changed: dict[PoolKey, None] = {}
        for run in runs:
            for uid, claim in self._of_runs.get(run, {}).items():
                changed |= self._have(uid, claim[TAKEN], self._taken_beside(claim))
            if not self._is_live(run):
                self._of_runs.pop(run, None)
        return self._changed_nodes(changed)

    def _taken_beside(self, claim: Json) -> DevicesTaken:
        """Devices of the claim that are of no run which the ledger knows."""
        return {} if not claim or (claim[RUN] and self._is_live(claim[RUN])) else claim[TAKEN]

    def _have(self, uid: str, before: DevicesTaken, now: DevicesTaken) -> dict[PoolKey, None]:
        for key in {**before, **now}:
            there = self._taken.setdefault(key, {})
            there.pop(uid, None)
            there.update({uid: now[key]} if key in now else {})
            if not there:
                del self._taken[key]
        return dict.fromkeys([*before, *now])

    def _changed_nodes(self, changed: Iterable[PoolKey]) -> list[str]:
        nodes = dict.fromkeys(node for key in changed if key in self._slices for node in self._nodes_of(key))
        for node in nodes:
            self._offers.pop(node, None)
        return list(nodes)

    def take_rules(self, deltas: Iterable[Delta]) -> list[str]:
        """Takes in changes of taint rules, which may be about any device."""
        for delta in deltas:
            uid = delta.object["metadata"]["uid"]
            if delta.type == "DELETED" or delta.object[RULE] is None:
                self._rules.pop(uid, None)
            else:
                self._rules[uid] = delta.object[RULE]
        self._devices.clear()
        self._offers.clear()
        return list(self._pools_of)

    def take_nodes(self, deltas: Iterable[Delta]) -> None:
        """Takes in changes of nodes, since selectors of slices look at their labels."""
        for delta in deltas:
            meta, is_there = delta.object["metadata"], delta.type != "DELETED"
            name, labels = meta["name"], meta.get("labels") or NO_LABELS
            if is_there and self._labels.get(name) == labels:
                continue
            self._labels.pop(name, None)
            self._labels.update({name: labels} if is_there else {})
            for key in self._wide:
                pool = self._pool(key)
                self._give(name, key, pool.reaches(name, labels) if is_there else name in pool.nodes)

    def _nodes_of(self, key: PoolKey) -> list[str]:
        """Nodes for which there is a slice of the pool."""
        pool = self._pool(key)
        wide = (name for name, labels in self._labels.items() if pool.wide and pool.reaches(name, labels))
        return sorted({*pool.nodes, *wide})

    def _give(self, node: str, key: PoolKey, is_there: bool) -> None:
        """Let the node have the pool, or not, and read its devices anew."""
        of_node = self._pools_of.setdefault(node, {})
        of_node.pop(key, None)
        of_node.update({key: None} if is_there else {})
        if not of_node:
            del self._pools_of[node]
        self._devices.pop(node, None)
        self._offers.pop(node, None)

    def _pool(self, key: PoolKey) -> PublishedPool:
        found = self._pools.get(key)
        if found is None:
            found = self._pools[key] = judge_pool(self._slices[key].values())
        return found

    def _hold(self, uid: str, one: Slice, is_there: bool) -> dict[str, None]:
        """The nodes of the slice's pool, as it was before and is now."""
        key: PoolKey = (one.driver, one.pool)
        nodes = dict.fromkeys(self._nodes_of(key)) if key in self._slices else {}
        self._pools.pop(key, None)
        slices = self._slices.setdefault(key, {})
        slices.pop(uid, None)
        slices.update({uid: one} if is_there else {})
        self._wide.pop(key, None)
        if not slices:
            del self._slices[key]
        elif self._pool(key).wide:
            self._wide[key] = None
        now = dict.fromkeys(self._nodes_of(key)) if slices else {}
        nodes |= now
        for node in nodes:
            self._give(node, key, node in now)
        return nodes


def reduced_claim(claim: Json) -> Json:
    """Reduce a claim to its identity, what it has, and the run that it is marked with."""
    return _identity(claim) | {TAKEN: taken_by(claim), RUN: run_of(claim)}


def reduced_rule(rule: Json) -> Json:
    """Reduce a taint rule to its identity and what it says; one that cannot be read says nothing."""
    spec: Any = rule.get("spec")
    try:
        wanted = spec.get("deviceSelector") or {}
        read = TaintRule(wanted.get("driver"), wanted.get("pool"), wanted.get("device"), read_taint(spec["taint"]))
    except (KeyError, TypeError, AttributeError):
        return _identity(rule) | {RULE: None}
    return _identity(rule) | {RULE: read if read.taint[2] in ("NoSchedule", "NoExecute") else None}


def reduced_slice(reader: SliceReader, thing: Json) -> Json:
    """Reduce a slice to its identity and what was read of it."""
    return _identity(thing) | {SLICE: reader.read(thing)}


def _identity(thing: Json) -> Json:
    meta = thing["metadata"]
    return {"metadata": {name: meta[name] for name in _IDENTITY if name in meta}}
