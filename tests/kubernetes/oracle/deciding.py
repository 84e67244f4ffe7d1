"""
Tessera's part: the binder's reading of a world's objects, the ledger's fold, and the committer's own decision.

What is read and decided is what services do; only the way between them is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tessera.binder.adoption.decide.device_claims import ReadClaim, with_claims
from tessera.binder.adoption.decide.ranks import ranked
from tessera.binder.claims.decide.allocation import AllocatedDevice, ClaimReservation, allocation_of
from tessera.binder.decide.nodes import node_seen
from tessera.binder.devices.decide.layouts import OfferedLayout
from tessera.binder.devices.decide.selectors import BadSelector, check_selectors, takes, views_of
from tessera.binder.devices.index import DeviceIndex, reduced_claim, reduced_slice
from tessera.binder.devices.reports import read_class
from tessera.kernel.kubernetes.informer import Delta
from tessera.testkit.checker import check
from tessera_schemas.base import job_id
from tessera_schemas.cluster.device_facts import ClassSeen, DevicesSelected, LayoutSeen
from tessera_schemas.facts import NodeSeen
from tessera_schemas.job import JobSpec, Role
from tessera_schemas.reasons import Reason
from tests.builders import SHARD, admitted, config_body, config_proposed
from tests.kubernetes.oracle.judging import PlacedPod
from tests.kubernetes.oracle.placing import Objects
from tests.ledgers import Committed

Json = dict[str, Any]
NOW = "2026-01-01T00:00:00Z"
ORDERS_MAX = 20


@dataclass(frozen=True)
class Refused:
    """A gang that the adoption refuses, with the reason."""

    gang: str
    reason: Reason


class Deciding:
    """A copy of a world before Tessera; `taken_by` are claims whose devices somebody else has."""

    def __init__(self, objects: Objects, taken_by: Sequence[Json] = ()) -> None:
        self._objects, self.refused = objects, list[Refused]()
        index = DeviceIndex()
        index.take_slices(Delta("ADDED", reduced_slice(index.reader, one), None) for one in objects.slices)
        index.take_claims(Delta("ADDED", reduced_claim(one), None) for one in taken_by)
        self._classes = [read_class(one["metadata"]["name"], one) for one in objects.classes]
        self._nodes = list[NodeSeen]()
        for node in objects.nodes:
            name = node["metadata"]["name"]
            offered = index.devices(name).offered
            gpus = {} if offered is None else {"published": offered.gpus}
            self._nodes.append(node_seen(node, offer=index.offer(name), **gpus))
        self._index = index

    def decide(self, gangs: Sequence[str]) -> dict[str, list[PlacedPod]]:
        """These gangs submitted together: those that were placed, as their pods and claims would be written."""
        pods, books, roles = self._objects.gangs(), Committed(), dict[str, list[Role]]()
        ranks: dict[str, list[tuple[Role, Json]]] = {}
        for gang in gangs:
            read = ranked([with_claims(pod, list(map(ReadClaim, self._objects.specs_of(pod)))) for pod in pods[gang]])
            if isinstance(read, Reason):
                self.refused.append(Refused(gang, read))
                continue
            ranks[gang], roles[gang] = read, list({role.name: role for role, _ in read}.values())
        selectors = {
            (choice.device_class, tuple(choice.selectors))
            for each in roles.values()
            for role in each
            for claim in role.resources.claims
            for request in claim.requests
            for choice in request.choices
        }
        books.commit(holder="scheduler-1")
        books.commit(config_proposed(config_body()))
        layouts = list(self._index.layouts.values())
        books.commit(*(LayoutSeen(kind="layout_seen", layout=each.layout) for each in layouts))
        books.commit(*self._classes)
        books.commit(*(fact for each in layouts for fact in select(each, self._classes, sorted(selectors))))
        books.commit(*self._nodes)
        for gang, each in roles.items():
            books.commit(admitted(gang, JobSpec(name=gang, queue="research", roles=tuple(each))))
        for _ in range(ORDERS_MAX):
            records = books.commit(orders=(books.line(),)).records
            if not any(record.kind == "allocated" for record in records):
                break
        report = check(books.stored)
        assert not report.violations, report.violations
        return {gang: placed for gang, read in ranks.items() if (placed := self._placed(books, gang, read))}

    def _placed(self, books: Committed, gang: str, read: Sequence[tuple[Role, Json]]) -> list[PlacedPod]:
        """The pods of a gang with their claims as the binder would allocate them; none of a gang that waits."""
        job = books.state.jobs.get(job_id(SHARD, "lab", gang))
        run = books.state.runs.get(job.run_id)
        if run is None:
            return []
        classes = {one["metadata"]["name"]: one for one in self._objects.classes}
        published = {
            f"{spec['driver']}/{spec['pool']['name']}/{device['name']}": AllocatedDevice(device)
            for spec in (one["spec"] for one in self._objects.slices)
            for device in spec.get("devices") or ()
        }
        found = []
        for place, (_, pod) in zip(run.all_placements, read, strict=True):
            had, meta = [], pod["metadata"]
            for entry, claim in zip(pod["spec"]["resourceClaims"], self._objects.claims_of(pod), strict=True):
                drawn = tuple(each for each in place.drawn if each.claim == entry["name"])
                wanted = ClaimReservation(
                    run.run_id, place.rank, meta["name"], meta["uid"], place.node, drawn, published, classes
                )
                allocation = allocation_of(claim, wanted, NOW)
                assert not isinstance(allocation, Reason), allocation
                had.append((claim["spec"], allocation["devices"]["results"]))
            found.append(PlacedPod(meta["name"], place.node, tuple(had)))
        return found


def select(
    offered: OfferedLayout, classes: Sequence[ClassSeen], asked: Sequence[tuple[str, tuple[str, ...]]]
) -> list[DevicesSelected]:
    """What each set of selectors takes of a layout, as the binder says it."""
    known, found = {each.name: each.selectors for each in classes}, dict[tuple[str, ...], DevicesSelected]()
    for name, selectors in (*((name, ()) for name in known), *asked):
        both = tuple(sorted({*known[name], *selectors}))
        if not both or both in found:
            continue
        devices, error = 0, ""
        try:
            check_selectors(both, offered.hidden)
            for view, alike in views_of(offered.seen):
                devices |= alike if takes(both, view) else 0
        except BadSelector as bad:
            devices, error = 0, str(bad)
        found[both] = DevicesSelected(
            kind="devices_selected", layout=offered.digest, selectors=both, devices=f"{devices:x}", error=error
        )
    return list(found.values())
