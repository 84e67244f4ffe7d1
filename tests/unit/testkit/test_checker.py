"""Each invariant catches the ledger, cluster or stream that breaks it, and a clean story passes."""

import ast
import io
import tokenize
from pathlib import Path
from typing import Any

import pytest

from tessera.testkit import (
    account_checker,
    bookings_checker,
    checker,
    datasets_checker,
    devices_checker,
    events_checker,
    pays_checker,
    relations_checker,
    rules_checker,
    sessions_checker,
)
from tessera.testkit.checker import PodChange, Report
from tessera.testkit.checker import check as check_ledger
from tessera.testkit.events_checker import check_events
from tessera.testkit.events_checker.due import due_events
from tessera.testkit.rules_checker import check_rules
from tessera_schemas import ledger as m
from tessera_schemas import subjects
from tessera_schemas.base import job_id
from tessera_schemas.cluster.gang_groups import RoleGroup
from tessera_schemas.cluster.labels import FINALIZER, RANK_LABEL, RUN_LABEL, SCHEDULER_NAME
from tessera_schemas.config import Tenant
from tessera_schemas.documents.registry import dataschema
from tessera_schemas.events import CURSOR_HEADER, EVENT_TYPES, CloudEvent, short_type
from tessera_schemas.facts import CancelRequested, JobRefused, Others, OwnerEnded, PodsMade, RunEnded, RunLost, Taint
from tessera_schemas.job import JobSpec, Toleration, Topology
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.adopted import Adopted
from tessera_schemas.work.placement import Placement
from tests.builders import (
    SHARD,
    Chain,
    admitted,
    config_body,
    config_proposed,
    first_run,
    job_spec,
    node_seen,
    placement,
    queue,
    role,
    run_absent,
)
from tests.unit.testkit.stored_ledgers import FAR, WHY, Shard, allocation, finish, permit, requeue, unmark

Stored = tuple[str, dict[str, str], bytes]


def check(stored: list[bytes], *, events: list[Stored] | None = None, drained: bool = False, **more: Any) -> Report:
    """All checkers, as everybody calls them."""
    report = check_ledger(stored, drained=drained, **more)
    check_rules(report, stored)
    if events is not None:
        check_events(report, stored, events, drained=drained)
    return report


def broken(report: Report) -> set[str]:
    return {violation.invariant for violation in report.violations}


def pod(
    change: str = "MODIFIED",
    run: str = first_run(),
    n: int | None = None,
    uid: str = "uid-0",
    rank: int = 0,
    node: str = "node-a",
    phase: str = "Running",
    held: bool = False,
) -> PodChange:
    labels = {RUN_LABEL: run, RANK_LABEL: str(rank)} if run else {}
    meta = {"uid": uid, "labels": labels, "finalizers": [FINALIZER] if held else []}
    spec = {"schedulerName": SCHEDULER_NAME, **({"nodeName": node} if node else {})}
    return PodChange(change, {"metadata": meta, "spec": spec, "status": {"phase": phase}}, n)


def events_of(stored: list[bytes]) -> list[Stored]:
    """The stream as a correct projection writes it."""
    models = {model.type: model for model in EVENT_TYPES}
    made = []
    for cursor, due in due_events(stored).items():
        model = models[due.type]
        given = {name: value for name, value in due.event_data.items() if name in model.model_fields}
        data = model.model_validate(given)
        envelope = CloudEvent(
            specversion="1.0",
            id=cursor,
            source="urn:tessera:main",
            type=due.type,
            subject=str(due.event_data.get("job_id", "")),
            time="2025-10-09T08:53:20Z",
            dataschema=dataschema(model),
            tenant=due.tenant,
            sequence=cursor.partition(".")[0].zfill(16),
            data=data.to_data(),
        )
        subject = subjects.event(SHARD, due.tenant, due.queue, short_type(due.type))
        made.append((subject, {CURSOR_HEADER: cursor}, envelope.to_bytes()))
    return made


def refused(key: str = "bad", repeats: int = 0, tenant: str = "lab") -> JobRefused:
    reasons = (Reason(code=Code.NO_SUCH_QUEUE),)
    id_ = job_id(SHARD, tenant, key)
    return JobRefused(kind="job_refused", tenant=tenant, job_id=id_, reasons=reasons, repeats=repeats)


def turned_away() -> m.JobTurnedAway:
    return m.JobTurnedAway(kind="job_turned_away", fact=0, reasons=(Reason(code=Code.NO_SUCH_QUEUE),))


def clean() -> Shard:
    """One job succeeds, one is evicted, tried again and cancelled, one is refused."""
    shard = Shard(body=config_body(queue(gpu_milli=2000)))
    shard.running()
    shard.queued("k2")
    waits = m.Waiting(kind="waiting", job_id=job_id(SHARD, "lab", "k2"), reason=Reason(code=Code.NO_FIT))
    shard.add(waits)
    shard.allocated(placement(devices=(1,)), key="k2")
    shard.revoked(first_run("k2"))
    shard.released(requeue("k2", not_before=shard.ts + 500), run=first_run("k2"))
    shard.finished()
    cancel = CancelRequested(kind="cancel_requested", job_id=job_id(SHARD, "lab", "k2"), tenant="lab")
    shard.add(finish("cancelled", "k2", Reason(code=Code.CANCELLED)), facts=[cancel], opens=True)
    shard.add(turned_away(), facts=[refused()])
    return shard


def pods_of_clean() -> list[PodChange]:
    """k1's pod is made after n 3, bound after the permit (n 4), ended before the release (n 13), removed after it."""
    made = pod("ADDED", n=3, node="", phase="Pending", held=True)
    return [made, pod(n=4, held=True), pod(n=11, phase="Succeeded"), pod("DELETED", n=13, phase="Succeeded")]


def test_a_clean_story_passes_and_says_how_much_was_looked_at() -> None:
    shard = clean()
    report = check(
        shard.stored,
        pods=pods_of_clean(),
        events=events_of(shard.stored),
        acknowledged=[("lab", "k1"), ("lab", "k2"), ("lab", "bad")],
        digests=("aa", "aa"),
        drained=True,
    )
    assert report.violations == []
    looked_at = (
        "messages",
        "facts",
        "allocated",
        "placements",
        "released",
        "events",
        "binds",
        "pod changes",
        "submits",
    )
    assert [what for what in looked_at if not report.examined[what]] == []
    assert {f"I{i}" for i in range(1, 14)} - {"I11"} <= report.examined.keys()


def test_a_check_of_nothing_shows_as_one() -> None:
    assert check([]).examined.keys() <= {"I12"}


CUT = {"device_profile": "mig", "mig_geometry": "40gb", "mig_instances": {"1g.5gb": 1}}
SEVENTH = job_spec(role(gpus=0, mig_profile="1g.5gb"))


def instance(mig: tuple[int, int] | None = (0, 1), gpu_milli: int = 125) -> Placement:
    return Placement(0, "worker", "node-a", (0,), gpu_milli, mig)


PAIR, PAIRS = job_spec(role(gpus=0, mig_profile="1g.5gb", gpu_parts=2)), CUT | {"mig_instances": {"1g.5gb": 3}}
SHARES, HAMI = job_spec(role(gpus=0, gpu_milli=400, gpu_parts=2)), {"device_profile": "hami"}


def pair(starts: tuple[int, ...] = (0, 1)) -> Placement:
    return Placement(0, "worker", "node-a", (0, 0), 125, (0, 1), mig_starts=starts)


@pytest.mark.parametrize(
    ("place", "spec", "node"),
    [
        pytest.param(placement(), job_spec(role(cpu_milli=65_000)), {}, id="more CPU than the node has"),
        pytest.param(placement(), job_spec(role(memory_bytes=2**40)), {}, id="more memory than the node has"),
        pytest.param(placement(), job_spec(), {"pods": 0}, id="more pods than the node takes"),
        pytest.param(placement(devices=(8,)), job_spec(), {}, id="a device that the node does not have"),
        pytest.param(placement(devices=(0, 0)), job_spec(role(gpus=2)), {}, id="one device twice"),
        pytest.param(placement(devices=(0, 1)), job_spec(), {}, id="more devices than asked for"),
        pytest.param(placement(devices=()), job_spec(), {}, id="fewer devices than asked for"),
        pytest.param(placement(node="node-x"), job_spec(), {}, id="an unknown node"),
        pytest.param(placement(), job_spec(), {"ready": False}, id="a node that is not ready"),
        pytest.param(placement(), job_spec(), {"gone": True}, id="a node that is gone"),
        pytest.param(placement(), job_spec(), {"pool": "other"}, id="a node of another pool"),
        pytest.param(placement(), job_spec(role(gpu_models=("a100",))), {}, id="another GPU model"),
        pytest.param(placement(), job_spec(role(node_selector={"zone": "b"})), {}, id="labels that do not match"),
        pytest.param(
            placement(),
            job_spec(role(affinity=({"key": "rack", "operator": "NotIn", "values": ("r1",)},))),
            {"labels": {"rack": "r1"}},
            id="an affinity that does not hold",
        ),
        pytest.param(
            placement(), job_spec(role(gpu_memory_bytes=2)), {"gpu_memory_bytes": 1}, id="GPUs with less memory"
        ),
        pytest.param(
            placement(gpu_milli=500),
            job_spec(role(gpus=0, gpu_milli=500, gpu_memory_bytes=2)),
            {"gpu_memory_bytes": 3, "device_profile": "shares"},
            id="a share with less memory",
        ),
        pytest.param(
            placement(), job_spec(role(devices={"rdma/hca": 2})), {"devices": {"rdma/hca": 1}}, id="too few NICs"
        ),
        pytest.param(placement(), job_spec(), {"device_profile": "shares"}, id="a whole GPU where shares are served"),
        pytest.param(
            placement(gpu_milli=500), job_spec(role(gpus=0, gpu_milli=500)), {}, id="a share where GPUs are whole"
        ),
        pytest.param(placement(), job_spec(), {"trouble": Reason(code=Code.DEVICE_CONFLICT)}, id="a node in trouble"),
        pytest.param(placement(), job_spec(), CUT, id="a whole GPU where GPUs are cut"),
        pytest.param(instance(), SEVENTH, {}, id="an instance where GPUs are whole"),
        pytest.param(instance(mig=(7, 1)), SEVENTH, CUT, id="an instance where none can begin"),
        pytest.param(instance(mig=(0, 2)), SEVENTH, CUT, id="an instance that is too large"),
        pytest.param(instance(gpu_milli=250), SEVENTH, CUT, id="an instance that takes more than it is"),
        pytest.param(instance(mig=None), SEVENTH, CUT, id="an instance that is nowhere"),
        pytest.param(instance(), SEVENTH, CUT | {"mig_instances": {"3g.20gb": 2}}, id="an instance that nobody made"),
        pytest.param(
            instance(), SEVENTH, CUT | {"others": {"devices": {"nvidia.com/mig-1g.5gb": 1}}}, id="an instance of others"
        ),
        pytest.param(pair(), PAIR, CUT | {"mig_instances": {"1g.5gb": 1}}, id="more instances than were made"),
        pytest.param(pair(starts=()), PAIR, PAIRS, id="an instance of two that is nowhere"),
        pytest.param(pair(starts=(0, 0)), PAIR, PAIRS, id="one instance twice"),
        pytest.param(pair(starts=(1, 2)), PAIR, PAIRS, id="a first instance that is elsewhere, too"),
        pytest.param(pair(starts=(0, 7)), PAIR, PAIRS, id="a second instance where none can begin"),
        pytest.param(placement(devices=(0, 0), gpu_milli=400), SHARES, HAMI, id="two shares of one pod on one GPU"),
        pytest.param(placement(devices=(0,), gpu_milli=400), SHARES, HAMI, id="one share of two"),
        pytest.param(placement(devices=(0, 1), gpu_milli=800), SHARES, HAMI, id="shares of another size"),
        pytest.param(
            placement(devices=(0, 1), gpu_milli=400),
            SHARES,
            {"device_profile": "mps", "share_milli": 400},
            id="two replicas, which may be of one GPU",
        ),
        pytest.param(
            placement(), job_spec(), {"taints": (Taint(key="spot", effect="NoSchedule"),)}, id="an untolerated taint"
        ),
        pytest.param(
            placement(), job_spec(role(exclusive=True)), {"gpus": 2}, id="a node alone, of more GPUs than asked for"
        ),
        pytest.param(placement(rank=1), job_spec(), {}, id="ranks that do not start at 0"),
        pytest.param(placement(), job_spec(role(replicas=2)), {}, id="a part of the gang"),
    ],
)
def test_i1_no_pod_is_placed_where_it_may_not_be(place: Placement, spec: JobSpec, node: dict[str, Any]) -> None:
    shard = Shard(node_seen("node-a", **node))
    shard.queued(spec=spec)
    shard.allocated(place)
    assert broken(check(shard.stored)) == {"I1"}


@pytest.mark.parametrize(
    ("place", "spec", "node"), [(pair(), PAIR, PAIRS), (placement(devices=(0, 1), gpu_milli=400), SHARES, HAMI)]
)
def test_i1_a_pod_may_have_several_shares_or_instances(place: Placement, spec: JobSpec, node: dict[str, Any]) -> None:
    shard = Shard(node_seen("node-a", **node))
    shard.queued(spec=spec)
    shard.allocated(place)
    assert broken(check(shard.stored)) == set()


def test_i1_a_pod_bears_what_its_own_tenant_bears() -> None:
    for tenant, found in (("lab", set()), ("other", {"I1"})):
        bears = Tenant(name=tenant, tolerations=(Toleration(key="spot"),))
        body = config_body().model_copy(update={"tenants": (bears,)})
        shard = Shard(node_seen("node-a", taints=(Taint(key="spot", effect="NoSchedule"),)), body=body)
        shard.queued()
        shard.allocated(placement())
        assert broken(check(shard.stored)) == found


def test_i1_an_instance_that_was_made_may_be_had_and_no_second_one() -> None:
    shard = Shard(node_seen("node-a", **CUT))
    for key, place in (("one", instance()), ("two", instance(mig=(1, 1)))):
        assert broken(check(shard.stored)) == set()
        shard.queued(key, spec=SEVENTH)
        shard.allocated(place, key=key)
    assert broken(check(shard.stored)) == {"I1"}


RACK = {"level": "rack"}


@pytest.mark.parametrize(
    ("nodes", "roles", "right"),
    [
        pytest.param("ab", [role(replicas=2, topology=RACK)], False, id="in two domains"),
        pytest.param("aa", [role(replicas=2, topology=RACK)], True, id="in one domain"),
        pytest.param("ab", [role(replicas=2, topology={**RACK, "required": False})], True, id="preferred only"),
        pytest.param("ab", [role(replicas=2, topology={**RACK, "wider": ("zone",)})], True, id="in one wider domain"),
        pytest.param("xx", [role(replicas=2, topology=RACK)], False, id="on nodes of no domain"),
        pytest.param(
            "ab", [role(n, topology={**RACK, "group": "g"}) for n in ("one", "two")], False, id="a group in two domains"
        ),
        pytest.param("ab", [role(n, topology=RACK) for n in ("one", "two")], True, id="roles each in their own"),
        pytest.param("ab", [role("one"), role("two", same_node_as="one")], False, id="not on the same node"),
        pytest.param("aa", [role("one"), role("two", same_node_as="one")], True, id="on the same node"),
        pytest.param("aaab", [role(replicas=4, spread="rack")], False, id="uneven"),
        pytest.param("aab", [role(replicas=3, spread="rack")], True, id="even but for one"),
        pytest.param("aaab", [role(replicas=4, spread="rack", max_skew=2)], True, id="as uneven as it may be"),
        pytest.param("aaaab", [role(replicas=5, spread="rack", max_skew=2)], False, id="too uneven"),
        pytest.param("ax", [role(replicas=2, spread="rack")], False, id="spread to a node of no domain"),
    ],
)
def test_i1_pods_lie_to_each_other_as_their_roles_ask(nodes: str, roles: list[Any], right: bool) -> None:
    labels = {"a": {"rack": "a", "zone": "z"}, "b": {"rack": "b", "zone": "z"}, "x": {}}
    shard = Shard(*(node_seen(f"node-{name}", labels=labels[name]) for name in "abx"))
    shard.queued(spec=job_spec(*roles))
    names = [each.name for each in roles for _ in range(each.replicas)]
    shard.allocated(*(placement(rank, f"node-{nodes[rank]}", (rank,), role=name) for rank, name in enumerate(names)))
    assert broken(check(shard.stored)) == (set() if right else {"I1"})


@pytest.mark.parametrize(
    ("nodes", "right"),
    [
        pytest.param("aabb", True, id="each copy in its own domain"),
        pytest.param("abab", False, id="copies across domains"),
        pytest.param("aabx", False, id="a copy on a node of no domain"),
        pytest.param("aacc", False, id="copies in two domains of the group that they are in"),
    ],
)
def test_i1_each_copy_of_a_group_is_in_its_domain(nodes: str, right: bool) -> None:
    zones = {"a": "z", "b": "z", "c": "y"}
    labels = {name: {"rack": name, "zone": zone} for name, zone in zones.items()} | {"x": {"zone": "z"}}
    shard = Shard(*(node_seen(f"node-{name}", labels=labels[name]) for name in labels))
    every = RoleGroup(name="all", topology=Topology(level="zone"))
    pair = RoleGroup(name="pair", within="all", pods={"worker": 2}, topology=Topology(level="rack"))
    shard.queued(spec=job_spec(role(replicas=4), groups=(every, pair)))
    shard.allocated(*(placement(rank, f"node-{name}", (rank,)) for rank, name in enumerate(nodes)))
    assert broken(check(shard.stored)) == (set() if right else {"I1"})


@pytest.mark.parametrize(
    ("nodes", "wrong"),
    [
        pytest.param("bb", set(), id="whole, in its domain"),
        pytest.param("ab", {"I1"}, id="across domains"),
        pytest.param("cc", {"I1"}, id="beyond the domain of all"),
        pytest.param("b", {"group"}, id="no whole copy"),
    ],
)
def test_a_group_grows_by_whole_copies_each_in_its_domain(nodes: str, wrong: set[str]) -> None:
    zones = {"a": "z", "b": "z", "c": "y"}
    shard = Shard(*(node_seen(f"node-{name}", labels={"rack": name, "zone": zones[name]}) for name in zones))
    every = RoleGroup(name="all", topology=Topology(level="zone"))
    pair = RoleGroup(name="pair", within="all", pods={"worker": 2}, topology=Topology(level="rack"))
    grow_pair(shard, *(f"node-{name}" for name in nodes), groups=(every, pair))
    assert broken(check(shard.stored)) == wrong


def grow_pair(shard: Shard, *nodes: str, groups: tuple[RoleGroup, ...]) -> None:
    """A run of two pods on node-a grows by pods on these nodes."""
    shard.queued(spec=job_spec(role(replicas=2, max_replicas=6), groups=groups))
    shard.allocated(*(placement(rank, "node-a", (rank,)) for rank in range(2)))
    shard.permitted("uid-0", "uid-1")
    shard.add(m.Started(kind="started", run_id=first_run()))
    grown = tuple(placement(2 + at, name, (4 + at,)) for at, name in enumerate(nodes))
    shard.add(m.Grown(kind="grown", run_id=first_run(), deadline=FAR, placements=grown))


@pytest.mark.parametrize(("late_ms", "wrong"), [(0, set()), (1, {"I4"})])
def test_i4_no_job_starts_too_late_to_end_by_its_deadline(late_ms: int, wrong: set[str]) -> None:
    shard = Shard()
    latest = shard.ts + 30_000
    shard.queued(spec=job_spec(deadline_ts=latest + 30_000, time_limit_seconds=30))
    shard.ts = latest + late_ms - 1000
    shard.allocated(placement())
    assert broken(check(shard.stored)) == wrong


@pytest.mark.parametrize(("late_ms", "wrong"), [(0, {"I4"}), (1, set())])
def test_i4_no_job_misses_a_deadline_that_it_could_meet(late_ms: int, wrong: set[str]) -> None:
    shard = Shard()
    latest = shard.ts + 30_000
    shard.queued(spec=job_spec(deadline_ts=latest + 30_000, time_limit_seconds=30))
    shard.ts = latest + late_ms - 1000
    missed = Reason(code=Code.DEADLINE_MISSED)
    shard.add(m.Finished(kind="finished", job_id=job_id(SHARD, "lab", "k1"), phase="cancelled", reason=missed))
    assert broken(check(shard.stored)) == wrong


@pytest.mark.parametrize(("ranks", "wrong"), [((2, 3), set()), ((3,), {"group"})])
def test_a_group_shrinks_by_whole_copies(ranks: tuple[int, ...], wrong: set[str]) -> None:
    shard = Shard()
    pair = RoleGroup(name="pair", pods={"worker": 2})
    grow_pair(shard, "node-a", "node-a", groups=(pair,))
    shard.add(m.Shrunk(kind="shrunk", run_id=first_run(), ranks=ranks, reason=Reason(code=Code.SHRUNK)))
    assert broken(check(shard.stored)) == wrong


@pytest.mark.parametrize(
    ("how", "nodes", "right"),
    [
        pytest.param({"topology": {"level": "narrow"}}, "aa", True, id="in one domain"),
        pytest.param({"topology": {"level": "narrow"}}, "ab", False, id="in two domains"),
        pytest.param({"spread": "narrow"}, "ab", True, id="spread"),
    ],
)
def test_i1_a_level_is_what_its_name_meant_when_the_job_was_queued(how: Any, nodes: str, right: bool) -> None:
    named, later = (
        config_body(topology=[{"name": "narrow", "label": label}]) for label in ("example.org/rack", "example.org/none")
    )
    shard = Shard(*(node_seen(f"node-{name}", labels={"example.org/rack": name}) for name in "ab"), body=named)
    shard.queued(spec=job_spec(role(replicas=2, **how)))
    shard.add(m.ConfigSet(kind="config_set", fact=0, version=2), facts=[config_proposed(later, 1)])
    shard.allocated(*(placement(rank, f"node-{name}", (rank,)) for rank, name in enumerate(nodes)))
    assert broken(check(shard.stored)) == (set() if right else {"I1"})


def test_i1_a_tolerated_taint_a_share_and_a_plugin_node_are_fine() -> None:
    taints = (Taint(key="spot", value="yes", effect="NoSchedule"), Taint(key="slow", effect="PreferNoSchedule"))
    size = {"gpu_memory_bytes": 10, "devices": {"rdma/hca": 2}}
    shard = Shard(node_seen("node-a", taints=taints, device_profile="plugin", labels={"zone": "a"}, **size))
    affinity = ({"key": "zone", "operator": "In", "values": ("a", "b")}, {"key": "rack", "operator": "DoesNotExist"})
    spec = job_spec(
        role("whole", tolerations=({"key": "spot"},), node_selector={"zone": "a"}, gpu_memory_bytes=10),
        role(
            "part",
            gpus=0,
            gpu_milli=400,
            gpu_memory_bytes=4,
            tolerations=({"key": "spot", "value": "yes", "effect": "NoSchedule"},),
        ),
        role("none", gpus=0, tolerations=({"key": "spot"},), affinity=affinity, devices={"rdma/hca": 2}),
    )
    shard.queued(spec=spec)
    shard.allocated(
        placement(role="whole"),
        placement(1, devices=(1,), gpu_milli=400, role="part"),
        placement(2, devices=(), gpu_milli=0, role="none"),
    )
    assert check(shard.stored).violations == []


@pytest.mark.parametrize(
    ("operator", "value", "right"),
    [("Gt", "4", True), ("Gt", "5", False), ("Lt", "10", True), ("Lt", "5", False), ("Gt", "many", None)],
)
def test_i1_conditions_on_numbers_compare_integers(operator: str, value: str, right: bool | None) -> None:
    asked = {"key": "slots", "operator": operator, "values": ("4",) if right is None else (value,)}
    shard = Shard(node_seen("node-a", labels={"slots": "5" if right is not None else value}))
    shard.queued(spec=job_spec(role(affinity=(asked,))))
    shard.allocated(placement())
    assert broken(check(shard.stored)) == (set() if right else {"I1"})


@pytest.mark.parametrize(("zone", "right"), [("a", False), ("b", True), ("c", False)])
def test_i1_all_conditions_of_one_list_hold(zone: str, right: bool) -> None:
    in_a, in_b = ({"key": "zone", "operator": "In", "values": (each,)} for each in "ab")
    shard = Shard(node_seen("node-a", labels={"zone": zone}))
    shard.queued(spec=job_spec(role(affinity_any=((in_a, {"key": "rack", "operator": "Exists"}), (in_b,)))))
    shard.allocated(placement())
    assert broken(check(shard.stored)) == (set() if right else {"I1"})


@pytest.mark.parametrize(
    ("group", "other", "node", "right"),
    [
        pytest.param("web", "web", "node-a", False, id="one group on one node"),
        pytest.param("web", "web", "node-b", True, id="one group on two nodes"),
        pytest.param("web", "db", "node-a", True, id="two groups"),
        pytest.param(None, None, "node-a", True, id="each by itself"),
    ],
)
def test_i1_pods_of_one_anti_affinity_group_are_on_different_nodes(
    group: str | None, other: str | None, node: str, right: bool
) -> None:
    shard = Shard()
    for key, of in (("k1", group), ("k2", other)):
        shard.queued(key, job_spec(role(anti_affinity=({"group": of},))))
    shard.add(allocation(key="k1"), allocation(placement(0, node, devices=(1,)), key="k2"))
    assert broken(check(shard.stored)) == (set() if right else {"I1"})


def test_i1_pods_of_a_job_that_keep_apart_are_on_different_nodes() -> None:
    for node, right in (("node-a", False), ("node-b", True)):
        shard = Shard()
        shard.queued(spec=job_spec(role(replicas=2, anti_affinity=({},))))
        shard.allocated(placement(), placement(1, node, devices=(1,)))
        assert broken(check(shard.stored)) == (set() if right else {"I1"})


WEB = {"app": "web"}
OF_ZONE = {"topology": "zone"}


@pytest.mark.parametrize(
    ("there", "here", "node", "right"),
    [
        pytest.param({"labels": WEB}, {"apart_from": [{"labels": WEB}]}, "node-a", False, id="away, on one node"),
        pytest.param({"labels": WEB}, {"apart_from": [{"labels": WEB}]}, "node-b", True, id="away, on another"),
        pytest.param({"labels": WEB}, {"apart_from": [{"labels": WEB} | OF_ZONE]}, "node-b", False, id="in one zone"),
        pytest.param({"apart_from": [{"labels": WEB}]}, {"labels": WEB}, "node-a", False, id="who was there minds"),
        pytest.param({"labels": WEB}, {"apart_from": [{"labels": WEB, "weight": 1}]}, "node-a", True, id="a wish"),
        pytest.param({"labels": WEB}, {"near": [{"labels": WEB}]}, "node-b", False, id="near, on another node"),
        pytest.param({"labels": WEB}, {"near": [{"labels": WEB} | OF_ZONE]}, "node-b", True, id="near, in one zone"),
        pytest.param({}, {"labels": WEB, "near": [{"labels": WEB}]}, "node-b", True, id="the first of its kind"),
        pytest.param({}, {"near": [{"labels": WEB}]}, "node-b", False, id="near nobody"),
    ],
)
def test_i1_pods_are_away_from_and_near_to_those_that_their_terms_mean(
    there: Any, here: Any, node: str, right: bool
) -> None:
    names = ("node-a", "node-b")
    shard = Shard(*(node_seen(name, labels={"zone": "a", "kubernetes.io/hostname": name}) for name in names))
    for key, said in (("k1", there), ("k2", here)):
        shard.queued(key, job_spec(role(neighbours=said)))
    shard.add(allocation(key="k1"), allocation(placement(0, node, devices=(1,)), key="k2"))
    assert broken(check(shard.stored)) == (set() if right else {"I1"})


TWO_ZONES = ({"nvidia.com/gpu": 4, "rdma/hca": 2}, {"nvidia.com/gpu": 4})


@pytest.mark.parametrize(
    ("zones", "wanted", "right"),
    [
        pytest.param(TWO_ZONES, {"gpus": 4, "devices": {"rdma/hca": 2}}, True, id="one zone has both"),
        pytest.param(TWO_ZONES, {"gpus": 6}, False, id="no zone has the GPUs"),
        pytest.param(({"rdma/hca": 2}, {"nvidia.com/gpu": 8}), {"devices": {"rdma/hca": 1}}, False, id="none has both"),
        pytest.param((), {"gpus": 6, "numa_policy": "single-numa-node"}, False, id="no kubelet keeps it in one"),
        pytest.param(TWO_ZONES, {"gpus": 2, "numa_policy": "single-numa-node"}, True, id="a kubelet keeps it in one"),
    ],
)
def test_i1_a_pod_fits_a_numa_zone_of_a_node_that_keeps_it_in_one(zones: Any, wanted: Any, right: bool) -> None:
    shard = Shard(node_seen("node-a", devices={"rdma/hca": 2}, zones=zones))
    shard.queued(spec=job_spec(role(**wanted)))
    shard.allocated(placement(devices=range(wanted.get("gpus", 1))))
    assert broken(check(shard.stored)) == (set() if right else {"I1"})


@pytest.mark.parametrize(("value", "right"), [("", True), ("yes", False)])
def test_i1_a_toleration_of_the_empty_value_is_of_no_other(value: str, right: bool) -> None:
    shard = Shard(node_seen("node-a", taints=(Taint(key="spot", value=value, effect="NoSchedule"),)))
    shard.queued(spec=job_spec(role(tolerations=({"key": "spot", "operator": "Equal"},))))
    shard.allocated(placement())
    assert broken(check(shard.stored)) == (set() if right else {"I1"})


def test_i1_a_device_is_not_given_to_two_runs() -> None:
    shard = Shard()
    shard.queued("k1")
    shard.queued("k2")
    shard.add(allocation(key="k1"), allocation(key="k2"))
    assert broken(check(shard.stored)) == {"I1"}


@pytest.mark.parametrize("first", [0, 1])
def test_i1_a_node_that_a_pod_has_to_itself_takes_no_other(first: int) -> None:
    specs = job_spec(role(gpus=2, exclusive=True)), job_spec(role(gpus=0))
    places = placement(devices=(0, 1)), placement(devices=(), gpu_milli=0)
    shard = Shard(node_seen("node-a", gpus=2))
    shard.queued(spec=specs[first])
    shard.allocated(places[first])
    assert check(shard.stored).violations == []
    shard.queued("k2", specs[1 - first])
    shard.allocated(places[1 - first], key="k2")
    assert broken(check(shard.stored)) == {"I1"}


def test_i1_a_stopping_run_holds_its_device_until_it_is_released() -> None:
    shard = Shard()
    shard.running()
    shard.queued("k2")
    shard.revoked()
    shard.allocated(key="k2")
    assert broken(check(shard.stored)) == {"I1"}


def test_i1_a_node_that_shrinks_under_its_runs_breaks_nothing_but_takes_no_more() -> None:
    shard = Shard(node_seen("node-a", gpus=2))
    shard.running()
    shard.add(m.NodeChanged(kind="node_changed", fact=0), facts=[node_seen("node-a", gpus=0, cpu_milli=500)])
    assert check(shard.stored).violations == []
    shard.queued("k2", job_spec(role(gpus=0, cpu_milli=1)))
    shard.allocated(placement(devices=(), gpu_milli=0), key="k2")
    assert broken(check(shard.stored)) == {"I1"}


def test_i1_what_others_take_is_not_to_be_had_and_evicts_nobody() -> None:
    def beside(**theirs: Any) -> Shard:
        """A run holds one GPU of two; then pods of others are there, too."""
        shard = Shard(node_seen("node-a", gpus=2, cpu_milli=4000, devices={"rdma/hca": 1}))
        shard.running()
        more = node_seen("node-a", gpus=2, cpu_milli=4000, devices={"rdma/hca": 1}, others=Others(**theirs))
        shard.add(m.NodeChanged(kind="node_changed", fact=0), facts=[more])
        return shard

    def starts(shard: Shard, place: Placement, **asks: Any) -> set[str]:
        shard.queued("k2", job_spec(role(**asks)))
        shard.allocated(place, key="k2")
        return broken(check(shard.stored))

    def shrunk(to: int) -> Shard:
        """Nobody says which cards are left: who holds slot 3 of four has one of them."""
        shard = Shard(node_seen("node-a", gpus=4))
        shard.queued("k1")
        shard.allocated(placement(devices=(3,)))
        shard.add(m.NodeChanged(kind="node_changed", fact=0), facts=[node_seen("node-a", gpus=to)])
        return shard

    assert starts(shrunk(2), placement(devices=(0,))) == set()
    assert starts(shrunk(1), placement(devices=(0,))) == {"I1"}
    assert check(beside(gpus=2, cpu_milli=9000, pods=500).stored).violations == []
    assert starts(beside(), placement(devices=(1,))) == set()
    assert starts(beside(gpus=1), placement(devices=(1,))) == {"I1"}
    assert starts(beside(cpu_milli=2500), placement(devices=(1,))) == {"I1"}
    assert starts(beside(pods=109), placement(devices=(1,))) == {"I1"}
    assert starts(beside(devices={"rdma/hca": 1}), placement(devices=(1,)), devices={"rdma/hca": 1}) == {"I1"}


def earmark(key: str, place: Placement) -> m.EarmarkSet:
    owner = job_id(SHARD, "lab", key)
    return m.EarmarkSet(kind="earmark_set", owner=owner, cause="head", deadline=FAR, placements=(place,))


def test_i1_earmarked_devices_are_the_owners_alone() -> None:
    shard = Shard()
    shard.queued("k1")
    shard.queued("k2")
    shard.add(earmark("k1", placement()))
    owner_uses_it, other_takes_it = list(shard.stored), shard
    other_takes_it.add(allocation(key="k2"))
    assert broken(check(other_takes_it.stored)) == {"I1"}
    again = Shard()
    again.queued("k1")
    again.add(earmark("k1", placement()), unmark("k1"), allocation(key="k1"))
    assert check(again.stored).violations == []
    twice = Shard()
    twice.queued("k1")
    twice.add(earmark("k1", placement()), allocation(key="k1"))
    assert "I1" in broken(check(twice.stored))
    assert check(owner_uses_it).violations == []


def test_i1_a_job_has_one_earmark_at_a_time() -> None:
    shard = Shard()
    shard.queued()
    shard.add(earmark("k1", placement()), unmark("k1", "outranked"), earmark("k1", placement()))
    assert check(shard.stored).violations == []
    shard.add(earmark("k1", placement(devices=(1,))))
    assert broken(check(shard.stored)) == {"I1"}


def test_i1_an_earmark_may_lie_on_devices_of_a_stopping_run_but_not_of_one_that_goes_on() -> None:
    shard = Shard()
    shard.running()
    shard.queued("k2")
    before = len(shard.stored)
    shard.add(earmark("k2", placement()))
    assert broken(check(shard.stored)) == {"I1"}
    assert check(shard.stored[:before]).violations == []
    preempting = Shard()
    preempting.running()
    preempting.queued("k2")
    revoke = m.Revoked(kind="revoked", run_id=first_run(), reason=WHY, then="requeue")
    ended = RunEnded(kind="run_ended", run_id=first_run(), reason=WHY)
    preempting.add(revoke, earmark("k2", placement()), facts=[ended])
    preempting.released(requeue(), unmark("k2"), allocation(key="k2"))
    assert check(preempting.stored).violations == []


def test_i1_a_pod_is_bound_where_the_ledger_put_it_and_no_two_live_pods_hold_a_device() -> None:
    shard = Shard()
    shard.running()
    assert broken(check(shard.stored, pods=[pod(node="node-b")])) == {"I1"}
    shard.finished()
    shard.running("k2")
    both = [pod(), pod(run=first_run("k2"), uid="uid-0b")]
    assert "I1" in broken(check(shard.stored, pods=both))


def test_i2_a_job_begins_no_run_before_the_last_is_released() -> None:
    shard = Shard()
    shard.running()
    shard.revoked()
    shard.add(requeue(), allocation(placement(devices=(1,)), attempt=2))
    assert "I2" in broken(check(shard.stored))


def test_i2_live_pods_of_two_runs_of_a_job_are_seen_on_the_cluster() -> None:
    shard = Shard()
    shard.running()
    shard.revoked()
    shard.released(requeue())
    shard.allocated(placement(devices=(1,)), attempt=2)
    second = f"{job_id(SHARD, 'lab', 'k1')}-2"
    shard.permitted("uid-9", run=second)
    assert "I2" in broken(check(shard.stored, pods=[pod(), pod(run=second, uid="uid-9")]))
    one_after_the_other = [pod(), pod("DELETED"), pod(run=second, uid="uid-9")]
    assert check(shard.stored, pods=one_after_the_other).violations == []


@pytest.mark.parametrize("uids", [("uid-0", "uid-1"), ("uid-0",), ("uid-0", "uid-0")])
def test_i3_a_permit_names_every_pod_once(uids: tuple[str, ...]) -> None:
    shard = Shard()
    shard.queued(spec=job_spec(role(replicas=2)))
    shard.allocated(placement(), placement(1, devices=(1,)))
    shard.permitted(*uids)
    assert broken(check(shard.stored)) == (set() if len(set(uids)) == 2 else {"I3"})


def test_i3_a_run_is_permitted_once_and_not_after_its_revoke() -> None:
    shard = Shard()
    shard.queued()
    shard.allocated()
    shard.permitted()
    shard.permitted("uid-1")
    assert broken(check(shard.stored)) == {"I3"}
    shard = Shard()
    shard.queued()
    shard.allocated()
    shard.revoked()
    shard.permitted()
    assert broken(check(shard.stored)) == {"I3"}


def test_i3_nothing_is_bound_or_started_without_a_permit() -> None:
    for record in (m.Bound(kind="bound", run_id=first_run()), m.Started(kind="started", run_id=first_run())):
        shard = Shard()
        shard.queued()
        shard.allocated()
        shard.add(record)
        assert broken(check(shard.stored)) == {"I3"}


def test_i3_a_pod_is_bound_only_after_its_permit_and_only_with_its_uid() -> None:
    shard = Shard()
    shard.running()
    permitted_at = 4
    assert check(shard.stored, pods=[pod(n=permitted_at)]).violations == []
    assert broken(check(shard.stored, pods=[pod(n=permitted_at - 1)])) == {"I3"}
    assert broken(check(shard.stored, pods=[pod(uid="uid-7")])) == {"I3"}
    assert broken(check(shard.stored, pods=[pod(run="")])) == {"I3"}


def test_i3_a_gang_that_has_not_started_is_revoked_by_its_deadline() -> None:
    shard = Shard()
    shard.queued()
    shard.allocated(deadline=shard.ts + 5000)
    in_time = list(shard.stored)
    shard.add(ms=600_000)
    shard.revoked()
    assert broken(check(shard.stored)) == {"I3"}
    assert check(in_time).violations == []


def test_i3_a_gang_does_not_start_long_after_its_deadline() -> None:
    shard = Shard()
    shard.queued()
    shard.allocated(deadline=shard.ts + 5000)
    shard.permitted()
    shard.add(m.Started(kind="started", run_id=first_run()), ms=600_000)
    assert broken(check(shard.stored)) == {"I3"}


def gone_for_long(facts_wait: bool) -> Shard:
    """A committer that allocated was gone for ten minutes; the next one opens its epoch."""
    shard = Shard()
    shard.queued()
    shard.allocated(deadline=shard.ts + 5000)
    shard.permitted()
    opened = m.EpochOpened(kind="epoch_opened", epoch=2, holder="scheduler-2")
    shard.add(opened, ms=600_000, epoch=2, holder="scheduler-2", facts_wait=facts_wait)
    return shard


def too_late() -> m.Revoked:
    return m.Revoked(
        kind="revoked", run_id=first_run(), reason=Reason(code=Code.START_TIMEOUT), then="requeue", by="deadline"
    )


def test_i3_a_deadline_that_passed_while_nobody_committed_is_judged_once_somebody_does() -> None:
    shard = gone_for_long(facts_wait=True)
    shard.add(m.Started(kind="started", run_id=first_run()), epoch=2)
    assert check(shard.stored).violations == []
    shard = gone_for_long(facts_wait=False)
    shard.add(too_late(), epoch=2)
    assert check(shard.stored).violations == []


def test_i3_no_deadline_is_judged_before_the_facts_that_waited_are_taken_in() -> None:
    shard = gone_for_long(facts_wait=True)
    shard.add(too_late(), epoch=2, facts_wait=True)
    assert broken(check(shard.stored)) == {"I3"}


def test_i3_a_run_has_its_whole_time_from_when_its_start_was_watched_without_a_gap() -> None:
    shard = gone_for_long(facts_wait=False)
    gap_ended = shard.ts
    shard.add(too_late(), ms=2_000, epoch=2, starts_since=gap_ended)
    assert broken(check(shard.stored)) == {"I3"}
    shard = gone_for_long(facts_wait=False)
    shard.add(too_late(), ms=6_000, epoch=2, starts_since=gap_ended)
    assert check(shard.stored).violations == []
    shard = gone_for_long(facts_wait=False)
    shard.add(too_late(), ms=6_000, epoch=2, starts_since=gap_ended + 60_000)
    assert broken(check(shard.stored)) == {"I3"}


def test_i3_facts_wait_only_where_an_epoch_opens() -> None:
    shard = gone_for_long(facts_wait=False)
    shard.add(epoch=2, facts_wait=True)
    assert broken(check(shard.stored)) == {"I3"}


def test_i4_a_run_is_released_once() -> None:
    shard = Shard()
    shard.running()
    shard.finished()
    shard.released()
    assert broken(check(shard.stored)) == {"I4"}


def test_i4_a_job_ends_exactly_once_and_in_a_legal_order() -> None:
    shard = Shard()
    shard.running()
    shard.finished()
    shard.add(finish("failed"))
    assert broken(check(shard.stored)) == {"I4"}
    shard = Shard()
    shard.queued()
    shard.add(finish("succeeded"))
    assert broken(check(shard.stored)) == {"I4"}


@pytest.mark.parametrize(
    ("phase", "failed", "adopted", "right"),
    [
        ("failed", True, True, True),
        ("succeeded", False, True, True),
        ("succeeded", True, True, False),
        ("failed", None, True, False),
        ("succeeded", False, False, False),
    ],
)
def test_i4_a_job_ends_without_a_run_as_its_owner_was_said_to_have_ended(
    phase: str, failed: bool | None, adopted: bool, right: bool
) -> None:
    shard, own = Shard(), Adopted(owner_kind="Job", owner_name="train")
    fact = admitted("k1").model_copy(update={"adopted": own if adopted else None})
    shard.add(m.JobQueued(kind="job_queued", fact=0, job_id=fact.job_id), facts=[fact])
    reason = Reason(code=Code.OWNER_FAILED)
    said = OwnerEnded(kind="owner_ended", job_id=fact.job_id, reason=reason if failed else None)
    ends = finish(phase, reason=reason if phase == "failed" else None)
    shard.add(ends, facts=[] if failed is None else [said])
    assert broken(check(shard.stored)) == (set() if right else {"I4"})


def test_i4_a_revoked_job_becomes_what_its_revoke_said() -> None:
    shard = Shard()
    shard.running()
    shard.revoked(then="failed")
    shard.released(requeue())
    assert broken(check(shard.stored)) == {"I4"}


def said_to_have_succeeded() -> Shard:
    """Its run was to be stopped, and ended well before it was."""
    shard = Shard()
    shard.running()
    why = Reason(code=Code.TIME_LIMIT)
    overdue = RunLost(kind="run_lost", run_id=first_run(), reason=why)
    shard.add(m.Revoked(kind="revoked", run_id=first_run(), reason=why, then="requeue"), facts=[overdue])
    shard.add(facts=[RunEnded(kind="run_ended", run_id=first_run())])
    return shard


def test_i4_a_run_that_succeeded_before_it_was_stopped_is_not_run_again() -> None:
    shard = said_to_have_succeeded()
    shard.add(finish("succeeded"))
    shard.released()
    assert broken(check(shard.stored)) == set()
    shard = said_to_have_succeeded()
    shard.released(requeue())
    assert broken(check(shard.stored)) == {"I4"}


def test_i4_a_run_that_saved_when_it_was_told_may_go_on_from_there() -> None:
    shard = said_to_have_succeeded()
    shard.add(m.Saved(kind="saved", run_id=first_run(), path="/saved/1"))
    shard.released(requeue())
    assert broken(check(shard.stored)) == set()


def test_i4_a_run_that_broke_before_it_was_said_to_have_succeeded_may_be_run_again_and_may_succeed() -> None:
    well, why = RunEnded(kind="run_ended", run_id=first_run()), Reason(code=Code.POD_FAILED)
    for again in (False, True):
        shard = Shard()
        shard.running()
        shard.revoked()  # a pod of it failed
        shard.add(*([] if again else [finish("succeeded")]), facts=[well])
        shard.released(*([requeue()] if again else []))
        assert broken(check(shard.stored)) == set()
    shard = said_to_have_succeeded()
    shard.add(facts=[well.model_copy(update={"reason": why})])
    shard.released(requeue())
    assert broken(check(shard.stored)) == {"I4"}


def test_i4_a_job_succeeds_only_once_its_run_is_said_to_have() -> None:
    for stopping in (False, True):
        shard = Shard()
        shard.running()
        if stopping:
            shard.revoked()
        shard.add(finish("succeeded"))
        shard.released()
        assert broken(check(shard.stored)) == {"I4"}


def test_i4_its_own_end_may_take_the_place_of_a_revoke() -> None:
    why = Reason(code=Code.POD_FAILED)
    for ended, found in ((True, set()), (False, {"I4"})):
        shard = Shard()
        shard.running()
        shard.revoked()
        shard.add(m.Revoked(kind="revoked", run_id=first_run(), reason=why, then="failed", ended=ended))
        shard.released(finish("failed"))
        assert broken(check(shard.stored)) == found


def test_i4_attempts_count_up_and_wait_for_their_time() -> None:
    shard = Shard()
    shard.queued()
    shard.allocated(attempt=2)
    assert broken(check(shard.stored)) == {"I4"}
    shard = Shard()
    shard.running()
    shard.revoked()
    shard.released(requeue(not_before=shard.ts + 10_000))
    shard.allocated(attempt=2)
    assert broken(check(shard.stored)) == {"I4"}


def test_i4_a_job_is_queued_once_until_its_key_is_forgotten() -> None:
    shard = Shard()
    shard.running()
    shard.finished()
    shard.queued()
    assert broken(check(shard.stored)) == {"I4"}
    shard = Shard()
    shard.running()
    shard.finished()
    shard.add(ms=8 * 86_400_000)
    shard.queued()
    assert check(shard.stored).violations == []


def test_i4_and_i12_when_all_is_drained_no_job_run_or_pod_is_left() -> None:
    shard = Shard()
    shard.running()
    assert check(shard.stored, pods=[pod()]).violations == []
    report = check(shard.stored, pods=[pod()], drained=True)
    assert sorted(violation.invariant for violation in report.violations) == ["I12", "I12", "I4"]


def test_i12_a_pod_that_kept_our_finalizer_is_an_orphan() -> None:
    shard = clean()
    kept = [*pods_of_clean()[:3], pod(phase="Succeeded", held=True)]
    assert broken(check(shard.stored, pods=kept, drained=True)) == {"I12"}


def test_i5_an_acknowledged_submit_is_queued_or_turned_away() -> None:
    shard = clean()
    assert broken(check(shard.stored, acknowledged=[("lab", "lost")], drained=True)) == {"I5"}
    assert check(shard.stored, acknowledged=[("lab", "lost")]).violations == []


def test_i5_refusals_that_were_only_counted_are_not_lost() -> None:
    shard = clean()
    shard.add(turned_away(), facts=[refused("flood", repeats=2)])
    flood = [("lab", "f1"), ("lab", "f2")]
    assert check(shard.stored, acknowledged=flood, drained=True).violations == []
    assert broken(check(shard.stored, acknowledged=[*flood, ("lab", "f3")], drained=True)) == {"I5"}


def test_i5_a_job_that_is_taken_in_is_answered_in_the_same_message() -> None:
    shard = Shard()
    shard.add(facts=[admitted()])
    assert broken(check(shard.stored)) == {"I5"}
    shard = Shard()
    shard.queued()
    shard.add(facts=[admitted()])
    assert check(shard.stored).violations == []


@pytest.mark.parametrize("quota", [{"gpu_milli": 1000}, {"cpu_milli": 1500}, {"memory_bytes": 2**30}])
def test_i6_no_allocation_raises_use_above_the_nominal_quota(quota: dict[str, Any]) -> None:
    shard = Shard(body=config_body(queue(**quota)))
    shard.running()
    shard.queued("k2")
    within = list(shard.stored)
    shard.allocated(placement(devices=(1,)), key="k2")
    assert check(within).violations == []
    assert broken(check(shard.stored)) == {"I6"}


def test_i6_use_comes_back_only_with_the_release_and_a_smaller_quota_evicts_nobody() -> None:
    shard = Shard(body=config_body(queue(gpu_milli=1000)))
    shard.running()
    shard.finished()
    shard.running("k2")
    smaller = config_proposed(config_body(queue(gpu_milli=0)), expected_version=1)
    shard.add(m.ConfigSet(kind="config_set", fact=0, version=2), facts=[smaller])
    assert check(shard.stored).violations == []


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 9},
        {"prev": "ab" * 32},
        {"ts": 1},
        {"epoch": 2},
        {"facts_upto": 1},
        {"facts": (m.TakenFact(seq=9, service="binder", fact=admitted()),), "facts_upto": 9},
        {"facts": (m.TakenFact(seq=9, service="binder", fact=node_seen()),), "facts_upto": 5},
        {"records": (m.JobQueued(kind="job_queued", fact=7, job_id=job_id(SHARD, "lab", "k1")),)},
        {"records": (m.EpochOpened(kind="epoch_opened", epoch=3, holder="x"),)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_i7_a_gap_a_fork_or_a_false_envelope_is_seen(changes: dict[str, Any]) -> None:
    shard = Shard()
    shard.add(**changes)
    assert "I7" in broken(check(shard.stored))


def test_i7_one_byte_changed_in_the_middle_breaks_the_chain() -> None:
    shard = clean()
    altered = [shard.stored[0], shard.stored[1].replace(b"train:1", b"train:2"), *shard.stored[2:]]
    assert broken(check(altered)) == {"I7"}
    assert broken(check([shard.stored[0], b"{}", *shard.stored[2:]])) == {"I7"}


def test_i7_a_record_is_about_the_fact_that_it_cites() -> None:
    shard = Shard()
    shard.add(m.JobQueued(kind="job_queued", fact=0, job_id=job_id(SHARD, "lab", "k2")), facts=[admitted("k1")])
    assert "I7" in broken(check(shard.stored))


def test_i7_a_configuration_continues_the_one_before() -> None:
    shard = Shard()
    stale = config_proposed(expected_version=0)
    shard.add(m.ConfigSet(kind="config_set", fact=0, version=2), facts=[stale])
    assert broken(check(shard.stored)) == {"I7"}


def swapped(events: list[Stored]) -> list[Stored]:
    return [*events[:2], events[3], events[2], *events[4:]]


def restated(events: list[Stored]) -> list[Stored]:
    (index,) = [i for i, event in enumerate(events) if b"allocated" in event[2] and b'"devices":[1]' in event[2]]
    subject, headers, data = events[index]
    return [*events[:index], (subject, headers, data.replace(b'"devices":[1]', b'"devices":[2]')), *events[index + 1 :]]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda events: events[:-1], id="the last is missing"),
        pytest.param(lambda events: [*events[:3], *events[4:]], id="one in the middle is missing"),
        pytest.param(lambda events: [*events[:4], *events[3:]], id="one is doubled"),
        pytest.param(swapped, id="two are in the wrong order"),
        pytest.param(restated, id="one says something else than its record"),
        pytest.param(lambda events: [*events, (events[0][0], {}, b"{}")], id="one cannot be read"),
        pytest.param(
            lambda events: [(events[0][0], {}, events[0][2]), *events[1:]], id="a cursor is not in its header"
        ),
        pytest.param(
            lambda events: [*events, (events[0][0], {}, events[0][2].replace(b'"id":"2.0"', b'"id":"99.0"'))],
            id="one comes from no record",
        ),
        pytest.param(
            lambda events: [(events[0][0].replace("research", "other"), *events[0][1:]), *events[1:]],
            id="one is on another queue's subject",
        ),
    ],
)
def test_i8_events_are_a_pure_function_of_the_ledger(spoil: Any) -> None:
    shard = clean()
    events = events_of(shard.stored)
    assert check(shard.stored, events=events, drained=True).violations == []
    assert broken(check(shard.stored, events=spoil(events), drained=True)) == {"I8"}


def test_i8_events_may_be_behind_while_work_goes_on() -> None:
    shard = clean()
    assert check(shard.stored, events=events_of(shard.stored)[:4]).violations == []


def test_i9_redis_hashes_as_it_does_rebuilt() -> None:
    assert broken(check(clean().stored, digests=("aa", "bb"))) == {"I9"}


def test_i10_a_release_follows_the_absence_of_its_run() -> None:
    shard = Shard()
    shard.running()
    shard.revoked()
    shard.add(m.Released(kind="released", run_id=first_run()))
    assert broken(check(shard.stored)) == {"I10"}


def test_i10_a_run_that_goes_on_is_not_released() -> None:
    shard = Shard()
    shard.running()
    shard.released()
    assert broken(check(shard.stored)) == {"I10"}


@pytest.mark.parametrize("leave", [requeue(), finish("failed")], ids=lambda record: record.kind)
def test_i10_a_job_leaves_its_revoked_run_only_after_the_release(leave: m.AnyRecord) -> None:
    shard = Shard()
    shard.running()
    shard.revoked(then="requeue" if leave.kind == "requeued" else "failed")
    shard.add(leave)
    assert broken(check(shard.stored)) == {"I10"}


def test_i10_no_pod_is_live_or_bound_once_its_run_is_released() -> None:
    shard = Shard()
    shard.running()
    shard.revoked()
    shard.released(requeue())
    assert check(shard.stored, pods=[pod(n=4), pod("DELETED", n=shard.n - 1)]).violations == []
    assert broken(check(shard.stored, pods=[pod(n=4), pod("DELETED", n=shard.n)])) == {"I10"}
    assert broken(check(shard.stored, pods=[pod(n=shard.n, phase="Failed")])) == {"I10"}
    assert broken(check(shard.stored, pods=[pod()])) == {"I10"}


def test_i11_what_was_turned_away_appears_in_no_later_record() -> None:
    shard = Shard()
    shard.add(turned_away(), facts=[refused("k1")])
    shard.allocated()
    assert broken(check(shard.stored)) == {"I11"}


def test_i13_an_event_of_one_tenant_is_never_on_anothers_subject() -> None:
    shard = clean()
    events = events_of(shard.stored)
    subject, headers, data = events[0]
    leaked = [(subject.replace(".lab.", ".other."), headers, data), *events[1:]]
    assert broken(check(shard.stored, events=leaked)) == {"I13"}
    renamed = [(subject, headers, data.replace(b'"tenant":"lab"', b'"tenant":"other"')), *events[1:]]
    assert broken(check(shard.stored, events=renamed)) == {"I13"}


def test_i13_a_job_is_cancelled_by_its_tenant_or_an_operator_alone() -> None:
    shard = Shard()
    shard.queued()
    foreign = CancelRequested(kind="cancel_requested", job_id=job_id(SHARD, "lab", "k1"), tenant="other")
    shard.add(finish("cancelled", reason=Reason(code=Code.CANCELLED)), facts=[foreign])
    assert broken(check(shard.stored)) == {"I13"}


@pytest.mark.parametrize(("said", "found"), [(Code.ENDED_AS_IDLE, False), (Code.POD_FAILED, True)])
def test_i13_a_pods_own_word_cancels_its_job_too(said: Code, found: bool) -> None:
    shard = Shard()
    shard.queued()
    ended = RunEnded(kind="run_ended", run_id=first_run(), reason=Reason(code=said))
    shard.add(finish("cancelled", reason=Reason(code=Code.CANCELLED)), facts=[ended])
    assert ("I13" in broken(check(shard.stored))) is found


PACKAGES = (
    account_checker,
    bookings_checker,
    checker,
    datasets_checker,
    devices_checker,
    events_checker,
    pays_checker,
    relations_checker,
    rules_checker,
    sessions_checker,
)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_the_checkers_import_the_contract_and_nothing_else_of_tessera_that_decides(package: Any) -> None:
    own = {package.__name__, "tessera.testkit.checker.report", "tessera.testkit.devices_checker"}
    for source in sources(package):
        for node in ast.walk(ast.parse(source.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            foreign = [name for name in names if name.startswith("tessera.") and name not in own]
            assert [name for name in foreign if not name.startswith(f"{package.__name__}.")] == []


@pytest.mark.parametrize(
    ("package", "most"),
    [
        (account_checker, 375),
        (bookings_checker, 210),
        (checker, 745),
        (datasets_checker, 140),
        (devices_checker, 230),
        (events_checker, 180),
        (pays_checker, 800),
        (relations_checker, 225),
        (rules_checker, 2000),
        (sessions_checker, 150),
    ],
)
def test_the_checkers_stay_small_enough_to_be_judged_by_eye(package: Any, most: int) -> None:
    """Lines that judge, of every file: all but imports, docstrings, comments and blank lines."""
    lines = sum(len(code_lines(source.read_text())) for source in sources(package))
    assert 0 < lines < most


def sources(package: Any) -> list[Path]:
    return sorted(Path(package.__file__).parent.rglob("*.py"))


def code_lines(text: str) -> set[int]:
    """The numbers of the lines on which something stands that is executed; imports apart, at the top of a file only."""
    tree = ast.parse(text)
    words = [node for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    apart = [*words, *(node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))]
    left_out = {line for node in apart for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    spaces = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    return {line for t in tokens if t.type not in spaces for line in range(t.start[0], t.end[0] + 1)} - left_out


# -- elastic runs ---------------------------------------------------------------------------------------------------


class Elastic(Shard):
    """One pod on node-a that may become three; grown by one on node-b."""

    def __init__(self, most: int = 3) -> None:
        super().__init__()
        self.queued(spec=job_spec(role(max_replicas=most)))
        self.allocated(placement())
        self.permitted()
        self.add(m.Started(kind="started", run_id=first_run()))

    def grown(self, *places: Placement) -> None:
        places = places or (placement(rank=1, node="node-b"),)
        self.add(m.Grown(kind="grown", run_id=first_run(), deadline=FAR, placements=places))

    def permits(self, *ranks: int) -> None:
        uids = tuple(f"uid-{rank}" for rank in ranks)
        made = PodsMade(kind="pods_made", run_id=first_run(), uids=uids, ranks=ranks)
        self.add(permit(*uids).model_copy(update={"ranks": ranks}), facts=[made])

    def shrunk(self, *ranks: int) -> None:
        why = Reason(code=Code.SHRUNK)
        self.add(m.Shrunk(kind="shrunk", run_id=first_run(), ranks=ranks, reason=why, by="deadline"))

    def freed(self, *ranks: int, absent: bool = True) -> None:
        fact = run_absent(first_run()).model_copy(update={"ranks": ranks})
        self.add(m.Released(kind="released", run_id=first_run(), ranks=ranks), facts=[fact] if absent else [])


def test_an_elastic_run_that_grows_and_shrinks_and_ends_passes() -> None:
    shard = Elastic()
    shard.grown()
    shard.permits(1)
    shard.grown(placement(rank=2, node="node-b", devices=(1,)))
    shard.permits(2)
    shard.shrunk(1)
    shard.freed(1)
    shard.queued("k2")
    shard.allocated(placement(node="node-b"), key="k2")
    shard.finished()
    assert check(shard.stored).violations == []


def test_the_pods_that_a_run_grew_by_are_bound_where_the_ledger_put_them() -> None:
    shard = Elastic()
    shard.grown()
    shard.permits(1)
    more = pod(uid="uid-1", rank=1, node="node-b")
    assert check(shard.stored, pods=[pod(), more]).violations == []
    assert broken(check(shard.stored, pods=[pod(), pod(uid="uid-1", rank=1)])) == {"I1"}
    assert broken(check(shard.stored[:-1], pods=[pod(), more])) == {"I3"}


@pytest.mark.parametrize(
    ("tell", "invariant"),
    [
        pytest.param(lambda s: s.grown(placement(rank=1)), "I1", id="a device that its own gang holds"),
        pytest.param(lambda s: s.grown(placement(rank=1, node="node-x")), "I1", id="an unknown node"),
        pytest.param(lambda s: s.grown(placement(rank=2, node="node-b")), "I3", id="a rank left out"),
        pytest.param(lambda s: s.grown(placement(rank=1, role="other")), "I3", id="a role that it does not have"),
        pytest.param(lambda s: s.permits(1), "I3", id="a permit for a pod that it does not have"),
        pytest.param(lambda s: (s.grown(), s.permits(0)), "I3", id="a second permit for the gang"),
        pytest.param(lambda s: (s.grown(), s.permits(1), s.permits(1)), "I3", id="a second permit for a pod"),
        pytest.param(lambda s: s.shrunk(0), "I4", id="a pod of its gang taken away"),
        pytest.param(lambda s: (s.grown(), s.shrunk(1), s.shrunk(1)), "I4", id="a pod taken away twice"),
        pytest.param(lambda s: (s.grown(), s.freed(1)), "I10", id="a pod released that is to stay"),
        pytest.param(
            lambda s: (s.grown(), s.shrunk(1), s.freed(1, absent=False)), "I10", id="a pod that is still there"
        ),
        pytest.param(lambda s: (s.revoked(), s.grown()), "I3", id="a run that is being stopped"),
    ],
)
def test_an_elastic_run_keeps_to_its_pods(tell: Any, invariant: str) -> None:
    shard = Elastic()
    tell(shard)
    assert broken(check(shard.stored)) == {invariant}


def test_surplus_pods_are_held_until_released_and_may_be_earmarked_meanwhile() -> None:
    shard = Elastic()
    shard.grown()
    shard.queued("k2")
    shard.shrunk(1)
    shard.add(earmark("k2", placement(node="node-b")))
    assert check(shard.stored).violations == []
    early = list(shard.stored), shard.prev
    shard.add(unmark("k2"), allocation(placement(node="node-b"), key="k2"))
    assert broken(check(shard.stored)) == {"I1"}
    shard.stored, shard.prev = early
    shard.freed(1)
    shard.add(unmark("k2"), allocation(placement(node="node-b"), key="k2"))
    assert check(shard.stored).violations == []


def test_i10_no_pod_of_a_released_part_is_live() -> None:
    shard = Elastic()
    shard.grown()
    shard.permits(1)
    at = shard.n
    shard.shrunk(1)
    shard.freed(1)
    assert broken(check(shard.stored, pods=[pod(uid="uid-1", rank=1, node="node-b", n=at)])) == {"I10"}


def test_i13_no_event_names_a_job_of_another_tenant() -> None:
    shard = Shard()
    shard.queued()
    shard.queued("k2")
    stranger = admitted("k1", tenant="other")
    shard.add(m.JobQueued(kind="job_queued", fact=0, job_id=stranger.job_id), facts=[stranger])
    for detail, wrong in (("", set()), (job_id(SHARD, "lab", "k2"), set()), (stranger.job_id, {"I13"})):
        why = Reason(code=Code.NO_FIT, detail=f"after {detail}")
        told = Chain.__new__(Shard)
        told.__dict__.update(shard.__dict__, stored=list(shard.stored))
        told.add(m.Waiting(kind="waiting", job_id=job_id(SHARD, "lab", "k1"), reason=why))
        assert broken(check(told.stored, events=events_of(told.stored))) == wrong


def test_i8_i13_an_eviction_names_its_cause_only_to_the_same_tenant() -> None:
    shard = Shard()
    shard.running()
    stranger = admitted("k9", tenant="other")
    shard.add(m.JobQueued(kind="job_queued", fact=0, job_id=stranger.job_id), facts=[stranger])
    ended = RunEnded(kind="run_ended", run_id=first_run(), reason=WHY)
    stop = m.Revoked(kind="revoked", run_id=first_run(), reason=WHY, then="requeue", by=stranger.job_id)
    shard.add(stop, facts=[ended])
    due = due_events(shard.stored)
    assert list(due.values())[-1].event_data["by"] == ""
    subject, headers, data = events_of(shard.stored)[-1]
    named = data.replace(b'"reason"', f'"by":"{stranger.job_id}","reason"'.encode(), 1)
    assert broken(check(shard.stored, events=[*events_of(shard.stored)[:-1], (subject, headers, named)])) == {
        "I8",
        "I13",
    }


# -- pods that end before their gang ----------------------------------------------------------------------------------


class Gang(Elastic):
    """Two pods on node-a, running."""

    def __init__(self) -> None:
        Shard.__init__(self)
        self.queued(spec=job_spec(role(replicas=2)))
        self.allocated(placement(), placement(rank=1, devices=(1,)))
        self.permitted("uid-0", "uid-1")
        self.add(m.Started(kind="started", run_id=first_run()))

    def other(self) -> None:
        """Another job where the second pod was."""
        self.queued("k2")
        self.allocated(placement(devices=(1,)), key="k2")


def test_a_device_is_another_jobs_once_its_pod_was_released_and_comes_back_once() -> None:
    shard = Gang()
    shard.freed(1)
    shard.other()
    shard.finished()
    shard.queued("k3")
    shard.allocated(placement(), key="k3")
    assert check(shard.stored).violations == []
    shard.queued("k4")
    shard.allocated(placement(devices=(1,)), key="k4")
    assert broken(check(shard.stored)) == {"I1"}


def test_pods_of_a_stopped_gang_are_released_singly_and_the_job_waits_for_the_last() -> None:
    shard = Gang()
    shard.revoked()
    shard.freed(0)
    shard.other()
    assert broken(check(shard.stored)) == {"I1"}, "the other pod is still there"
    shard = Gang()
    shard.revoked()
    shard.freed(1)
    shard.other()
    shard.released(requeue())
    assert check(shard.stored).violations == []


@pytest.mark.parametrize(
    "tell",
    [
        pytest.param(lambda s: s.freed(1, absent=False), id="nobody saw it end"),
        pytest.param(lambda s: (s.freed(1), s.freed(1)), id="twice"),
        pytest.param(lambda s: (s.revoked(), s.freed(1), s.add(requeue())), id="the job leaves before the last pod"),
    ],
)
def test_i10_a_pod_of_a_gang_is_released_once_after_its_end(tell: Any) -> None:
    shard = Gang()
    tell(shard)
    assert broken(check(shard.stored)) == {"I10"}


def test_i10_no_pod_lives_on_whose_device_was_given_back() -> None:
    shard = Gang()
    at = shard.n
    shard.freed(1)
    lives = [pod(uid="uid-1", rank=1, n=at)]
    ends = [*lives, pod(uid="uid-1", rank=1, n=at, phase="Succeeded")]
    assert broken(check(shard.stored, pods=lives)) == {"I10"}
    assert check(shard.stored, pods=[pod(n=at), *ends]).violations == []
