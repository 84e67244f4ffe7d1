"""
Rule of refusals for good: "never" is not concluded from "now".

A refusal says of a role that the nodes could not hold its pods, ever. The ledger has what each node had, and whoever
sent the jobs has what was asked for. The rule adds up how many of the pods the nodes of the queue's pool could hold, by
the most that each has had within `KEPT_MS`, and demands that they be too few. What it cannot tell for certain it does
not count: shares, instances and devices, what a pool or a tenant bears, nodes that changed pools. So a refusal that
breaks the rule is wrong for sure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from tessera.testkit.checker.report import Report
from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.cluster.devices import serves
from tessera_schemas.cluster.labels import GPU_RESOURCE, tells_condition
from tessera_schemas.job import JobSpec, Operator, Role
from tessera_schemas.reasons import Code, Reason

KEPT_MS = 7 * 24 * 3600 * 1000
"""How long a node counts with what it had, by docs/placement.md."""
FORMAT_OF_MEMORY = 4
"""Before, a node counted as it was."""
SEEN_MS = 5_000
"""
Admission judges by views, which come after the ledger: what a node has had for less time it may not know yet. In 40
seeds of the simulator half a second was enough.
"""
PASSES = ("nodes_not_ready", "nodes_cordoned")
"""Counts of nodes that may be back: no ground for a refusal for good."""

AskedSpecs = Mapping[str, Sequence[JobSpec | None]]
"""All that was ever submitted as the job of an id; one of several was refused. None: something that is not known."""


CITING = (m.ConfigSet, m.NodeChanged, m.JobTurnedAway)
_shape = attrgetter(
    "pool", "cpu_milli", "memory_bytes", "pods", "gpus", "gpu_model", "device_profile", "labels", "taints"
)


@dataclass(slots=True)
class NodeState:
    """State of a node from `since` on, up to `until`; None: it still is."""

    node: f.NodeSeen
    since: int
    until: int | None = None


class NeverRules:
    """Remembers by the facts about nodes alone, and judges the refusals of jobs that somebody submitted."""

    def __init__(self, report: Report, asked: AskedSpecs) -> None:
        self._report, self._asked = report, asked
        self._n = self._ts = self._format = 0
        self._nodes: dict[str, list[NodeState]] = {}
        self._pools: dict[str, set[str]] = {}  # of each queue, in whatever configuration

    def take(self, message: m.LedgerMessage) -> None:
        """Checks the records of a message in order."""
        self._n, self._ts = message.n, message.ts
        for record in message.records:
            cited = message.facts[record.fact : record.fact + 1] if isinstance(record, CITING) else ()
            fact = cited[0].fact if cited else None
            if isinstance(fact, f.NodeSeen):
                self._see(fact)
            elif isinstance(fact, f.ConfigProposed):
                for queue in fact.body.queues:
                    self._pools.setdefault(queue.name, set()).add(queue.pool)
            elif isinstance(fact, f.JobRefused) and self._format >= FORMAT_OF_MEMORY:
                self._judge(fact)
            elif isinstance(record, m.FormatRaised):
                self._format = record.format
                self._nodes = {name: [s for s in states if s.until is None] for name, states in self._nodes.items()}

    def _see(self, now: f.NodeSeen) -> None:
        states = self._nodes[now.name] = self._had(now.name, self._ts)
        if states and states[-1].until is None:
            if not now.gone and _shape(states[-1].node) == _shape(now):
                return
            states[-1].until = self._ts
        states += [] if now.gone else [NodeState(now, self._ts)]

    def _had(self, name: str, known: int) -> list[NodeState]:
        """States of the node that count yet, oldest first, as far as they had begun at the time `known`."""
        kept = self._ts - KEPT_MS
        return [s for s in self._nodes.get(name, ()) if s.since <= known and (s.until is None or s.until > kept)]

    def _judge(self, fact: f.JobRefused) -> None:
        for reason in (reason for reason in fact.reasons if reason.code is Code.INADMISSIBLE):
            passing = [name for name in PASSES if name in reason.numbers]
            self._demand(not passing, f"job {fact.job_id} is refused for good for {passing}")
            held = [self._held(spec, reason) for spec in self._asked.get(fact.job_id, ())] or [""]
            self._demand(not all(held), f"job {fact.job_id} is refused for good, but nodes have had room for {held[0]}")

    def _held(self, spec: JobSpec | None, reason: Reason) -> str:
        """Pods of the role that the refusal names, in words, where the nodes could hold all of them; else ""."""
        roles = () if spec is None else spec.roles
        role = next((role for role in roles if f"roles.{role.name}" == reason.field), None)
        pools = set() if spec is None else self._pools.get(spec.queue, set())
        if role is None or len(pools) != 1 or not _is_plain(role):
            return ""
        had = {name: [s.node for s in self._had(name, self._ts - SEEN_MS)] for name in sorted(self._nodes)}
        rooms = {name: _room(role, nodes, *pools) for name, nodes in had.items()}
        return f"{role.gang} pods of {rooms}" if sum(rooms.values()) >= role.gang else ""

    def _demand(self, holds: bool, text: str) -> None:
        self._report.demand(holds, "never", self._n, text)


def _is_plain(role: Role) -> bool:
    """Whether its pods ask for CPU, memory and whole GPUs alone, and for labels by their values."""
    asked, inside = role.resources, (Operator.IN, Operator.EXISTS)
    return not (
        asked.gpu_milli
        or asked.mig_profile
        or asked.gpu_memory_bytes
        or role.named_amounts
        or role.affinity_any
        or role.anti_affinity
        or role.neighbours
        or any(term.operator not in inside for term in role.affinity)
    )


def _room(role: Role, had: Sequence[f.NodeSeen], pool: str) -> int:
    """Number of its pods that the node could hold for certain; `had`: what it was, of which the most of each counts."""
    if not had or any(node.pool != pool for node in had) or not _suits(role, had):
        return 0
    asked = ("cpu_milli", role.cpu_milli), ("memory_bytes", role.memory_bytes), ("gpus", role.resources.gpus)
    names = ("pods", "cpu_milli", "memory_bytes", "gpus")
    most: dict[str, int] = {name: max(getattr(node, name) for node in had) for name in names}
    return min([most["pods"], *(most[name] // amount for name, amount in asked if amount)])


def _suits(role: Role, had: Sequence[f.NodeSeen]) -> bool:
    """Whether whatever it has had of a model, of labels and of a device profile would do, and its taints are borne."""
    models = {node.gpu_model for node in had if node.gpu_model}
    labels = {key: {node.labels[key] for node in had if key in node.labels} for node in had for key in node.labels}
    wanted = [(key, {value}) for key, value in role.node_selector.items()]
    wanted += [(term.key, {*term.values} or labels.get(term.key, set())) for term in role.affinity]
    return (
        (not role.gpu_models or (bool(models) and models <= {*role.gpu_models}))
        and all(labels.get(key) and labels[key] <= values for key, values in wanted)
        and (not role.resources.gpus or all(_gives_whole(role, node) for node in had))
        and any(all(_bears(role, taint) for taint in node.taints) for node in had)
    )


def _gives_whole(role: Role, node: f.NodeSeen) -> bool:
    """Whether it hands out whole GPUs of the resource that the role names; one that names none may be adopted."""
    resource = role.resources.gpu_resource
    same = node.gpu_resource == ("" if resource in ("", GPU_RESOURCE) else resource) and (resource or node.gpu_default)
    return bool(same) and serves(node.device_profile, "whole")


def _bears(role: Role, taint: f.Taint) -> bool:
    """Whether the taint keeps none of its pods out, or not for long. What a pool or a tenant bears is not counted."""
    if taint.effect == "PreferNoSchedule" or tells_condition(taint.key):
        return True
    own = any(t.key == taint.key and t.every_value and t.effect in ("", taint.effect) for t in role.tolerations)
    of = role.resources.gpu_resource or GPU_RESOURCE
    return own or (taint.key == of and taint.effect == "NoSchedule" and role.resources.gpus > 0)
