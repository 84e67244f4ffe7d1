"""Each rule of quotas, holds, drains and plans catches the ledger that breaks it, and a clean story passes."""

from collections.abc import Sequence
from typing import Any

import pytest

from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tessera_schemas import ledger as m
from tessera_schemas.base import job_id
from tessera_schemas.config import ConfigBody, Flavor, Policy, PriorityClass, Queue, Quota
from tessera_schemas.facts import (
    CancelRequested,
    DrainRequested,
    HoldRequested,
    MoveRequested,
    PlanProposed,
    PodsBack,
    PriorityRequested,
    RequeueRequested,
    RunIdle,
    RunLost,
    RunUntouched,
)
from tessera_schemas.job import JobIdle, JobSpec
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.work.adopted import Adopted, Service
from tessera_schemas.work.placement import Placement
from tests.builders import (
    SHARD,
    admitted,
    config_body,
    config_proposed,
    first_run,
    job_spec,
    node_seen,
    placement,
    role,
    run_absent,
)
from tests.published_devices import claim, claiming, class_seen, cut_gpus, layout_seen, selected
from tests.unit.testkit.stored_ledgers import FAR, Shard, allocation, permit, requeue, unmark

ROLES = role(gpus=1)


def broken(shard: Shard) -> set[str]:
    report = Report()
    check_rules(report, shard.stored)
    return {violation.invariant for violation in report.violations}


def id_of(key: str) -> str:
    return job_id(SHARD, "lab", key)


# -- quotas ---------------------------------------------------------------------------------------------------------


def quota(nominal: int, borrow: int | None = None, lend: int | None = None, flavor: str = "") -> Quota:
    return Quota(resource="gpu_milli", nominal=nominal, flavor=flavor, borrowing_limit=borrow, lending_limit=lend)


def tree(*leaves: Sequence[Quota], top: Sequence[Quota] = (), **more: Any) -> ConfigBody:
    """Queues q0, q1, … below `all`."""
    below = (Queue(name=f"q{i}", parent="all", quotas=tuple(quotas)) for i, quotas in enumerate(leaves))
    return config_body(Queue(name="all", quotas=tuple(top)), *below, **more)


def using(body: ConfigBody, *held: tuple[str, int], flavor: str = "", node: Any = None) -> Shard:
    """One job after another starts: of this queue, with so many GPUs."""
    shard, used = Shard(node or node_seen("node-a", gpus=64), body=body), 0
    for i, (name, gpus) in enumerate(held):
        shard.queued(f"k{i}", job_spec(role(gpus=gpus), queue=name))
        place = placement(devices=range(used, used + gpus))
        used += gpus
        shard.add(allocation(place, key=f"k{i}").model_copy(update={"flavor": flavor}))
    return shard


@pytest.mark.parametrize(
    ("body", "held", "right"),
    [
        pytest.param(tree([quota(4000)], [quota(4000)]), [("q0", 8)], True, id="all that the other lends"),
        pytest.param(tree([quota(4000)], [quota(4000)]), [("q0", 9)], False, id="more than both have"),
        pytest.param(tree([quota(4000)], [quota(4000)]), [("q0", 6), ("q1", 3)], False, id="what was lent, again"),
        pytest.param(tree([quota(4000, 2000)], [quota(4000)]), [("q0", 6)], True, id="up to the borrowing limit"),
        pytest.param(tree([quota(4000, 2000)], [quota(4000)]), [("q0", 7)], False, id="above the borrowing limit"),
        pytest.param(tree([quota(4000)], [quota(4000, None, 1000)]), [("q0", 5)], True, id="up to the lending limit"),
        pytest.param(tree([quota(4000)], [quota(4000, None, 1000)]), [("q0", 6)], False, id="above the lending limit"),
        pytest.param(
            tree([quota(4000)], [quota(4000, None, 1000)]), [("q0", 5), ("q1", 3)], True, id="what is kept is there"
        ),
        pytest.param(tree([quota(4000)], [], top=[quota(2000)]), [("q1", 6)], True, id="from those above and beside"),
        pytest.param(tree([quota(4000)], [], top=[quota(2000)]), [("q1", 7)], False, id="above all there is"),
        pytest.param(tree([], []), [("q1", 50)], True, id="no quota, no limit"),
        pytest.param(config_body(Queue(name="q0", quotas=(quota(0),))), [("q0", 1)], False, id="a quota of nothing"),
    ],
)
def test_i6_use_is_raised_within_quota_borrowing_and_lending_limits(
    body: ConfigBody, held: list[tuple[str, int]], right: bool
) -> None:
    assert broken(using(body, *held)) == (set() if right else {"I6"})


def test_i6_nothing_is_borrowed_outside_the_hours_in_which_it_may_be() -> None:
    hours = ({"hours": "08:00-08:54", "percent": 50}, {"hours": "08:54-08:00", "percent": 0})
    lender = {"name": "serving", "parent": "all", "quotas": (quota(4000),), "lending": hours}
    training = Queue(name="training", parent="all", quotas=(quota(4000),))
    body = config_body(Queue(name="all"), Queue.model_validate(lender), training)
    by_seven = using(body, ("training", 6), ("training", 1))
    assert broken(by_seven) == {"I6"}, "half of four may be lent"
    late = using(body, ("training", 5))
    late.add(ms=60_000)
    assert broken(late) == set(), "what is on loan runs on"
    late.queued("next", job_spec(role(gpus=1), queue="training"))
    late.add(allocation(placement(devices=(9,)), key="next"))
    assert broken(late) == {"I6"}, "nothing more is lent"


def test_i6_claims_count_as_the_devices_that_were_known_before_their_run_began() -> None:
    layout, place = cut_gpus(2), placement()
    shard = Shard(body=config_body(Queue(name="q0", quotas=(quota(1000),))))
    for key in "abc":
        shard.queued(key, job_spec(claiming(claim(selectors=("half",))), queue="q0"))
    halves = sum(1 << at for at, device in enumerate(layout.devices) if "half" in device.name)
    for fact in (layout_seen(layout), class_seen(), selected(layout, halves, "half")):
        shard.add(m.DevicesNoted(kind="devices_noted", fact=0), facts=[fact])
    for key, right in (("a", True), ("b", True), ("c", False)):
        shard.add(allocation(place, key=key))
        assert broken(shard) == (set() if right else {"I6"}), key
    whole = selected(layout, (1 << len(layout.devices)) - 1, "half")
    shard.add(m.DevicesNoted(kind="devices_noted", fact=0), facts=[whole])
    assert broken(shard) == {"I6"}, "runs keep what they count for"


def test_i6_a_limit_of_an_inner_queue_holds_for_those_below_it() -> None:
    inner = Queue(name="inner", parent="all", quotas=(quota(2000, 1000),))
    leaves = (Queue(name="q0", parent="inner"), Queue(name="q1", parent="all", quotas=(quota(8000),)))
    body = config_body(Queue(name="all"), inner, *leaves)
    assert broken(using(body, ("q0", 3))) == set()
    assert broken(using(body, ("q0", 4))) == {"I6"}
    assert broken(using(body, ("q1", 10))) == set()


def test_i6_a_lower_quota_evicts_nobody_but_lets_nothing_more_start() -> None:
    shard = using(config_body(Queue(name="q0", quotas=(quota(4000),))), ("q0", 2))
    lower = config_proposed(config_body(Queue(name="q0", quotas=(quota(1000),))), expected_version=1)
    shard.add(m.ConfigSet(kind="config_set", fact=0, version=2), facts=[lower])
    assert broken(shard) == set()
    shard.queued("k9", job_spec(ROLES, queue="q0"))
    shard.add(allocation(placement(devices=(9,)), key="k9"))
    assert broken(shard) == {"I6"}


FAST = (Flavor(name="fast", gpu_models=("h100",)), Flavor(name="slow", gpu_models=("a100",)))


@pytest.mark.parametrize(
    ("flavor", "model", "right"),
    [
        pytest.param("fast", "h100", True, id="as its nodes are"),
        pytest.param("", "h100", False, id="none where quotas tell them apart"),
        pytest.param("slow", "h100", False, id="another than its nodes are"),
        pytest.param("slow", "a100", False, id="one without a quota"),
    ],
)
def test_i6_a_run_counts_against_the_flavor_of_its_nodes(flavor: str, model: str, right: bool) -> None:
    body = tree([quota(4000, flavor="fast")], flavors=FAST)
    shard = using(body, ("q0", 1), flavor=flavor, node=node_seen("node-a", gpu_model=model))
    assert broken(shard) == (set() if right else {"I6"})


def test_i6_each_flavor_has_a_quota_of_its_own() -> None:
    body = tree([quota(2000, flavor="fast"), quota(9000, flavor="slow")], flavors=FAST)
    assert broken(using(body, ("q0", 2), flavor="fast")) == set()
    assert broken(using(body, ("q0", 3), flavor="fast")) == {"I6"}


def moving(queue: str, tenant: str) -> MoveRequested:
    return MoveRequested(kind="move_requested", job_id=id_of("k1"), queue=queue, tenant=tenant)


# -- stopped queues, holds, priorities, drains ---------------------------------------------------------------------


def test_nothing_starts_from_a_stopped_queue_or_one_below_it_or_from_none() -> None:
    for stopped in ("hold", "hold_and_drain"):
        top = Queue.model_validate({"name": "all", "stop_policy": stopped})
        assert broken(using(config_body(top, Queue(name="q0", parent="all")), ("q0", 1))) == {"stop"}
    assert broken(using(config_body(Queue(name="other")), ("q0", 1))) == {"stop"}
    assert broken(using(tree([]), ("all", 1))) == {"stop"}, "an inner queue takes no jobs"


def held(undo: bool = False, key: str = "k1") -> m.Held:
    return m.Held(kind="held", job_id=id_of(key), undo=undo)


def hold(undo: bool = False, tenant: str = "lab") -> HoldRequested:
    return HoldRequested(kind="hold_requested", job_id=id_of("k1"), undo=undo, tenant=tenant)


def test_a_held_job_does_not_start_until_it_is_let_go() -> None:
    shard = Shard()
    shard.queued()
    shard.add(held(), facts=[hold()])
    begun = Shard()
    begun.queued()
    begun.add(held(), facts=[hold()])
    begun.add(held(undo=True), facts=[hold(undo=True, tenant="")])
    begun.allocated()
    assert broken(begun) == set()
    shard.allocated()
    assert broken(shard) == {"hold"}


def test_a_job_that_was_submitted_held_does_not_start_either() -> None:
    for told in ([], [held()]):
        shard, fact = Shard(), admitted("k1").model_copy(update={"held": True})
        shard.add(m.JobQueued(kind="job_queued", fact=0, job_id=fact.job_id), facts=[fact])
        for record in told:
            shard.add(record)
        assert broken(shard) == set()
        shard.allocated()
        assert broken(shard) == {"hold"}


@pytest.mark.parametrize("facts", [[], [hold(undo=True)], [hold(tenant="other")]], ids=["nobody", "undo", "a stranger"])
def test_a_job_is_held_only_when_its_tenant_or_an_operator_asked(facts: list[HoldRequested]) -> None:
    shard = Shard()
    shard.queued()
    shard.add(held(), facts=facts)
    assert broken(shard) == {"I13"}


@pytest.mark.parametrize(("asked", "tenant"), [("high", "other"), ("low", "lab")])
def test_a_priority_class_is_changed_to_what_was_asked_for_by_who_may(asked: str, tenant: str) -> None:
    shard = Shard()
    shard.queued()
    fact = PriorityRequested(kind="priority_requested", job_id=id_of("k1"), priority_class=asked, tenant=tenant)
    shard.add(m.PrioritySet(kind="priority_set", job_id=id_of("k1"), priority_class="high"), facts=[fact])
    assert broken(shard) == {"I13"}


NEWER = m.FormatRaised(kind="format_raised", format=4)


@pytest.mark.parametrize(
    ("body", "abandon", "wrong"),
    [
        pytest.param(config_body(Queue(name="else")), False, {"config"}, id="the queue of a live job is gone"),
        pytest.param(config_body(Queue(name="else")), True, set(), id="it was asked for"),
        pytest.param(config_body(Queue(name="else", was="research")), False, set(), id="the queue has a new name"),
        pytest.param(
            config_body(Queue(name="research"), Queue(name="b", parent="research")), False, {"config"}, id="it is inner"
        ),
        pytest.param(config_body(tenants=("other",)), False, {"config"}, id="its tenant is gone"),
        pytest.param(
            config_body(priority_classes=(PriorityClass(name="low", value=0),)), False, {"config"}, id="its class is"
        ),
    ],
)
def test_a_configuration_takes_away_what_live_jobs_name_only_when_asked_to(
    body: ConfigBody, abandon: bool, wrong: set[str]
) -> None:
    shard = Shard()
    shard.add(NEWER)
    shard.queued()
    proposed = config_proposed(body, 1, abandon)
    shard.add(m.ConfigSet(kind="config_set", fact=0, version=2), facts=[proposed])
    assert broken(shard) == wrong


BOOKS = m.FormatRaised(kind="format_raised", format=6)
HOPPER = (Flavor(name="hopper", gpu_models=("h100",)),)


@pytest.mark.parametrize(
    ("form", "then", "flavor", "wrong"),
    [
        pytest.param(BOOKS, tree([], [quota(16_000)]), "", {"I6"}, id="what a removed queue holds counts"),
        pytest.param(BOOKS, tree([], [quota(20_000)]), "", set(), id="there is enough beside it"),
        pytest.param(NEWER, tree([], [quota(16_000)]), "", set(), id="before, it did not"),
        pytest.param(
            BOOKS,
            tree([quota(64_000)], [quota(16_000, flavor="hopper")], flavors=HOPPER),
            "hopper",
            {"I6"},
            id="what ran on the nodes of a flavor counts",
        ),
        pytest.param(
            BOOKS,
            tree([quota(64_000)], [quota(20_000, flavor="hopper")], flavors=HOPPER),
            "hopper",
            set(),
            id="enough of it",
        ),
    ],
)
def test_a_new_configuration_counts_what_runs_by_its_place_in_it(
    form: m.FormatRaised, then: ConfigBody, flavor: str, wrong: set[str]
) -> None:
    shard = using(tree([], [], [quota(10_000)]), ("q2", 10))
    shard.add(form)
    queues = (*then.queues, Queue(name="q2", parent="all")) if flavor else then.queues
    proposed = config_proposed(then.model_copy(update={"queues": queues}), 1, abandon=True)
    shard.add(m.ConfigSet(kind="config_set", fact=0, version=2), facts=[proposed])
    shard.queued("late", job_spec(role(gpus=10), queue="q1"))
    place = placement(devices=range(10, 20))
    shard.add(allocation(place, key="late").model_copy(update={"flavor": flavor}))
    assert broken(shard) == wrong


def test_nothing_starts_in_a_removed_queue() -> None:
    shard = using(tree([], [], [quota(10_000)]), ("q2", 10))
    shard.add(BOOKS)
    proposed = config_proposed(tree([], [quota(64_000)]), 1, abandon=True)
    shard.add(m.ConfigSet(kind="config_set", fact=0, version=2), facts=[proposed])
    shard.queued("late", job_spec(role(gpus=1), queue="q2"))
    shard.add(allocation(placement(devices=(10,)), key="late"))
    assert broken(shard) == {"stop"}


def test_no_job_of_a_tenant_that_is_not_there_starts() -> None:
    shard = Shard()
    shard.add(NEWER)
    shard.queued()
    proposed = config_proposed(config_body(tenants=("other",)), 1, abandon=True)
    shard.add(m.ConfigSet(kind="config_set", fact=0, version=2), facts=[proposed])
    shard.add(allocation())
    assert broken(shard) == {"config"}


@pytest.mark.parametrize(
    ("facts", "to", "wrong"),
    [
        pytest.param([], "else", {"I13"}, id="nobody asked"),
        pytest.param([moving("else", "other")], "else", {"I13"}, id="a stranger asked"),
        pytest.param([moving("else", "")], "else", set(), id="an operator asked"),
        pytest.param([moving("nowhere", "lab")], "nowhere", {"config"}, id="to no queue"),
    ],
)
def test_a_job_moves_to_the_queue_that_was_asked_for_by_who_may(
    facts: list[MoveRequested], to: str, wrong: set[str]
) -> None:
    shard = Shard(body=config_body(Queue(name="research"), Queue(name="else")))
    shard.queued()
    shard.add(m.JobMoved(kind="job_moved", job_id=id_of("k1"), queue=to), facts=facts)
    assert broken(shard) == wrong


def drained(undo: bool = False) -> tuple[m.NodeDrained, DrainRequested]:
    return (
        m.NodeDrained(kind="node_drained", node="node-a", undo=undo),
        DrainRequested(kind="drain_requested", node="node-a", undo=undo),
    )


def test_nothing_new_starts_or_is_kept_on_a_drained_node_until_it_is_common_again() -> None:
    for again in (False, True):
        for record in (allocation(), mark()):
            shard = Shard()
            shard.queued()
            for undo in (False, True)[: 1 + again]:
                done, asked = drained(undo)
                shard.add(done, facts=[asked])
            shard.add(record)
            assert broken(shard) == (set() if again else {"drain"})


def test_a_node_is_drained_only_when_an_operator_asked() -> None:
    shard = Shard()
    shard.add(drained()[0])
    assert broken(shard) == {"I13"}


FAIR = Policy(preset="fair", min_runtime_seconds=0)
APART = (Queue(name="q0"), Queue(name="q1", quotas=(quota(1000),)))


# -- plans ----------------------------------------------------------------------------------------------------------


def mark(key: str = "k1", **changes: Any) -> m.EarmarkSet:
    fields = {"owner": id_of(key), "cause": "head", "deadline": FAR, "placements": (placement(),)}
    return m.EarmarkSet.model_validate({"kind": "earmark_set", **fields, **changes})


class Plan(Shard):
    """k1, of class low, runs; k2, of class high, waits for its GPU: a plan is taken in and carried out."""

    def __init__(self, cause: str = "preemption", **changes: Any) -> None:
        self.changes = changes
        policy = {"preset": "fair", "min_runtime_seconds": 1, "idle": "requeue", **changes.pop("policy", {})}
        lent = [quota(0)], [quota(1000)]
        body = changes.pop("body", None) or tree(*lent, policy=Policy.model_validate(policy))
        super().__init__(node_seen("node-a", gpus=8), body=body)
        self.cause, self.code = cause, Code.PREEMPTED if cause == "preemption" else Code.RECLAIMED
        victims_queue = changes.pop("victims_queue", "q1" if cause == "preemption" else "q0")
        low = {"priority_class": "low", "preemptible": True, **changes.pop("victim", {})}
        self.queued("k1", job_spec(ROLES, queue=victims_queue, **low))
        self.add(allocation())
        self.permitted("uid-0")
        self.add(m.Started(kind="started", run_id=first_run()), ms=0)
        owner = {"priority_class": "high", "queue": "q1", **changes.pop("owner", {})}
        self.queued("k2", job_spec(ROLES, **owner))

    def proposed(self, **changes: Any) -> PlanProposed:
        fields = {
            "cause": self.cause,
            "job_id": id_of("k2"),
            "basis_n": 1,
            "ts": 1,
            "engine": "test-1",
            "policy": 1,
            "preset": "fair",
            "victims": (first_run(),),
            "placements": (placement(),),
        }
        return PlanProposed.model_validate({"kind": "plan_proposed", **fields, **changes})

    def revoke(self, **changes: Any) -> m.Revoked:
        fields = {"run_id": first_run(), "reason": Reason(code=self.code), "then": "requeue", "by": id_of("k2")}
        return m.Revoked.model_validate({"kind": "revoked", **fields, **changes})

    def kept(self, **changes: Any) -> m.EarmarkSet:
        fields = {"cause": self.cause, "victims": (first_run(),), "preset": "fair"}
        return mark("k2", **{**fields, **changes})

    def carried_out(self, ms: int = 1000) -> "Plan":
        self.add(self.revoke(), self.kept(), facts=[self.proposed()], ms=ms)
        return self


def test_a_plan_that_is_carried_out_whole_passes_until_its_owner_runs() -> None:
    for cause in ("preemption", "reclaim"):
        shard = Plan(cause).carried_out()
        shard.released(requeue(), unmark("k2"), allocation(key="k2"))
        assert broken(shard) == set()


def called_in(cause: str = "reclaim", kept: bool = True, ms: int = 5000, lent_kept_seconds: int = 5) -> Plan:
    """A run that its disruption budget kept from a first plan is stopped by a second one in spite of it."""
    shard = Plan(cause, policy={"lent_kept_seconds": lent_kept_seconds}).carried_out()
    why = Reason(code=Code.BLOCKED_BY_DISRUPTION_BUDGET)
    untouched = RunUntouched(kind="run_untouched", run_id=first_run(), revoked_ts=1, reason=why, kept=kept)
    spared = m.Spared(kind="spared", run_id=first_run(), reason=why, kept=kept)
    shard.add(unmark("k2", "blocked"), spared, facts=[untouched])
    shard.add(shard.revoke(called_in=True), shard.kept(), facts=[shard.proposed()], ms=ms)
    return shard


def test_a_run_is_called_in_once_its_budget_has_kept_lent_quota_for_as_long_as_the_policy_lets_it() -> None:
    assert broken(called_in()) == set()


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: called_in(ms=4999), id="too soon"),
        pytest.param(lambda: called_in(kept=False), id="no budget of its own kept it"),
        pytest.param(lambda: called_in(lent_kept_seconds=0), id="the policy leaves it to the budget"),
        pytest.param(lambda: called_in("preemption"), id="nothing was lent"),
    ],
)
def test_a_run_that_is_called_in_without_a_loan_that_was_kept_so_long_is_found(make: Any) -> None:
    assert broken(make()) == {"plan"}


def taking_back(reclaim: str) -> ConfigBody:
    lender = Queue.model_validate({"name": "q1", "parent": "all", "quotas": (quota(1000),), "reclaim": reclaim})
    return config_body(Queue(name="all"), Queue(name="q0", parent="all", quotas=(quota(0),)), lender, policy=FAIR)


def test_an_owner_takes_lent_quota_back_from_every_class_and_from_spent_budgets() -> None:
    assert (
        broken(Plan("reclaim", owner={"priority_class": "low"}, victim={"priority_class": "high"}).carried_out())
        == set()
    )
    shard = Plan("reclaim")
    spent = tree([quota(0)], [quota(1000)], policy=FAIR.model_copy(update={"evictions_max": 0}))
    shard.add(m.ConfigSet(kind="config_set", fact=0, version=2), facts=[config_proposed(spent, 1)])
    assert broken(shard.carried_out()) == set()


def team(own: int, victims_parent: str = "all", **more: Any) -> ConfigBody:
    """The owner's queue has nothing, the team above it `own`; the victim's is beside the team or in it."""
    top = Queue(name="all"), Queue(name="team", parent="all", quotas=(quota(own),), **more)
    leaves = Queue(name="q1", parent="team"), Queue(name="q0", parent=victims_parent, quotas=(quota(0),))
    return config_body(*top, Queue(name="rest", parent="all", quotas=(quota(1000 - own),)), *leaves, policy=FAIR)


def test_a_teams_quota_comes_back_from_other_teams_and_never_from_its_own_queues() -> None:
    assert broken(Plan("reclaim", body=team(1000)).carried_out()) == set()
    assert broken(Plan("reclaim", body=team(0)).carried_out()) == {"plan"}
    assert broken(Plan("reclaim", body=team(1000, victims_parent="team")).carried_out()) == {"plan"}


def test_work_that_may_not_be_evicted_does_not_borrow() -> None:
    firm = job_spec(ROLES, queue="q0", preemptible=False)
    for body, engine, wrong in (
        (tree([quota(0)], [quota(1000)]), "test-1", {"I6"}),
        (tree([quota(0)], [quota(1000)], top=[quota(1000)]), "test-1", set()),
        (tree([quota(1000)], [quota(0)]), "test-1", set()),
        (tree([quota(0)], [quota(1000)]), "tessera-3", set()),
    ):
        shard = Shard(node_seen("node-a", gpus=8), body=body)
        shard.queued("k1", firm)
        shard.add(allocation(), engine=engine)
        assert broken(shard) == wrong


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: Plan(policy={"preset": "off"}).carried_out(), id="the preset is off"),
        pytest.param(
            lambda: Plan("reclaim", body=taking_back("never")).carried_out(), id="a queue that never reclaims"
        ),
        pytest.param(lambda: Plan(policy={"min_runtime_seconds": 9}).carried_out(), id="a victim too young"),
        pytest.param(lambda: Plan(policy={"evictions_max": 0}).carried_out(), id="a victim out of budget"),
        pytest.param(lambda: Plan(victim={"preemptible": False}).carried_out(), id="a victim not preemptible"),
        pytest.param(lambda: Plan(victim={"priority_class": "high"}).carried_out(), id="a victim of the same class"),
        pytest.param(lambda: Plan(victims_queue="q0").carried_out(), id="preemption in another queue"),
        pytest.param(
            lambda: Plan("reclaim", body=taking_back("lower_priority"), owner={"priority_class": "low"}).carried_out(),
            id="a queue that reclaims from lower classes",
        ),
        pytest.param(
            lambda: Plan("reclaim", body=config_body(*APART, policy=FAIR)).carried_out(), id="reclaim from another tree"
        ),
        pytest.param(
            lambda: Plan("reclaim", body=tree([quota(1000)], [quota(1000)], policy=FAIR)).carried_out(),
            id="a victim that holds nothing lent",
        ),
        pytest.param(
            lambda: Plan("reclaim", body=tree([quota(0)], [quota(0)], top=[quota(2000)], policy=FAIR)).carried_out(),
            id="an owner that would borrow itself",
        ),
    ],
)
def test_a_run_is_evicted_only_for_who_may_by_the_preset_and_within_the_budgets(make: Any) -> None:
    assert broken(make()) == {"plan"}


@pytest.mark.parametrize(
    "tell",
    [
        pytest.param(lambda s: s.add(s.revoke(), s.kept()), id="no plan was proposed"),
        pytest.param(lambda s: s.add(s.revoke(), facts=[s.proposed()]), id="no room is kept"),
        pytest.param(lambda s: s.add(s.kept(), facts=[s.proposed()]), id="no victim is stopped"),
        pytest.param(lambda s: s.add(facts=[s.proposed()]), id="a plan without an answer"),
        pytest.param(
            lambda s: (s.add(s.revoke(), facts=[s.proposed()]), s.add(s.kept())), id="one plan in two messages"
        ),
        pytest.param(
            lambda s: s.add(s.revoke(), s.kept(victims=(first_run("k9"),)), facts=[s.proposed()]), id="other victims"
        ),
        pytest.param(lambda s: s.add(s.revoke(), s.kept(preset="off"), facts=[s.proposed()]), id="another preset"),
        pytest.param(
            lambda s: s.add(s.revoke(), s.kept(), facts=[s.proposed(placements=(placement(devices=(1,)),))]),
            id="room kept elsewhere than proposed",
        ),
        pytest.param(lambda s: s.add(s.revoke(by=id_of("k3")), s.kept(), facts=[s.proposed()]), id="for nobody"),
    ],
)
def test_a_plan_is_carried_out_whole_in_the_message_that_takes_it_in(tell: Any) -> None:
    shard = Plan()
    tell(shard)
    assert "plan" in broken(shard)


def test_a_refused_plan_has_no_effect_and_needs_no_other_answer() -> None:
    shard = Plan()
    no = m.PlanRefused(kind="plan_refused", fact=0, job_id=id_of("k2"), reason=Reason(code=Code.VICTIM_GONE))
    shard.add(no, facts=[shard.proposed()])
    assert broken(shard) == set()
    both = Plan()
    both.add(no, both.revoke(), both.kept(), facts=[both.proposed()])
    assert broken(both) == {"plan"}


def test_room_counts_as_used_quota_while_the_runs_there_are_being_stopped() -> None:
    shard = Plan("reclaim").carried_out()
    shard.queued("k3", job_spec(ROLES, queue="q1"))
    shard.add(allocation(placement(devices=(1,)), key="k3"))
    assert broken(shard) == {"I6"}


def test_runs_that_look_the_same_count_each_for_itself_while_they_are_being_stopped() -> None:
    shard = Plan(body=tree([quota(0)], [quota(2000)], policy=FAIR))
    low = job_spec(ROLES, queue="q1", priority_class="low", preemptible=True)
    shard.queued("k3", low)
    shard.add(allocation(placement(devices=(1,)), key="k3"), ms=0)
    shard.permitted("uid-3", run=first_run("k3"))
    for key in ("k1", "k3"):
        shard.add(m.Started(kind="started", run_id=first_run(key)), ms=0)
    shard.queued("k4", job_spec(ROLES, queue="q1", priority_class="high"))
    for owner, victim, device in (("k4", "k3", 1), ("k2", "k1", 0)):
        run, places = (first_run(victim),), (placement(devices=(device,)),)
        kept = mark(owner, cause="preemption", victims=run, preset="fair", placements=places)
        plan = shard.proposed(job_id=id_of(owner), victims=run, placements=places)
        shard.add(shard.revoke(run_id=run[0], by=id_of(owner)), kept, facts=[plan], ms=0)
    assert broken(shard) == set()


@pytest.mark.parametrize(
    "records",
    [
        pytest.param((unmark("k2"),), id="its owner does not start"),
        pytest.param((unmark("k2"), allocation(placement(devices=(1,)), key="k2")), id="it starts elsewhere"),
        pytest.param((unmark("k2", "deadline"),), id="it ends before its deadline"),
    ],
)
def test_kept_room_is_used_by_its_owner_there_or_not_at_all(records: tuple[m.AnyRecord, ...]) -> None:
    shard = Plan().carried_out()
    shard.released(requeue(), *records)
    assert broken(shard) == {"plan"}


def test_kept_room_is_not_used_after_its_deadline() -> None:
    shard = Plan()
    shard.add(shard.revoke(), shard.kept(deadline=shard.ts + 2000), facts=[shard.proposed()])
    shard.released(requeue(), unmark("k2"), allocation(key="k2"))
    assert broken(shard) == {"plan"}


def test_an_eviction_counts_once_the_job_is_back_in_its_queue() -> None:
    shard = Plan(policy={"evictions_max": 1}).carried_out()
    evicted = requeue().model_copy(update={"reason": Reason(code=Code.PREEMPTED)})
    shard.released(evicted, unmark("k2", "owner_gone"))
    cancel = CancelRequested(kind="cancel_requested", job_id=id_of("k2"), tenant="lab")
    shard.add(facts=[cancel])
    again = f"{id_of('k1')}-2"
    shard.add(allocation(attempt=2))
    shard.permitted("uid-1", run=again)
    shard.add(m.Started(kind="started", run_id=again))
    shard.queued("k4", job_spec(ROLES, queue="q1", priority_class="high"))
    proposed = shard.proposed(job_id=id_of("k4"), victims=(again,))
    checked_nodes = mark("k4", cause="preemption", victims=(again,), preset="fair")
    shard.add(shard.revoke(run_id=again, by=id_of("k4")), checked_nodes, facts=[proposed])
    assert broken(shard) == {"plan"}


# -- pods of users --------------------------------------------------------------------------------------------------

OWNER = Adopted(owner_kind="Job", owner_name="train", owner_uid="u", uids=("uid-0",))


def adopted() -> Shard:
    shard = Shard()
    fact = admitted("k1").model_copy(update={"adopted": OWNER})
    shard.add(m.JobQueued(kind="job_queued", fact=0, job_id=fact.job_id), facts=[fact])
    return shard


@pytest.mark.parametrize(
    ("before", "after", "wrong"), [("keep", None, {"I6"}), ("", "keep", {"I6"}), ("keep", "", set())]
)
def test_work_of_which_its_budget_lets_no_pod_go_does_not_borrow(
    before: str, after: str | None, wrong: set[str]
) -> None:
    shard = Shard(node_seen("node-a", gpus=8), body=tree([quota(0)], [quota(1000)]))
    owner = OWNER.model_copy(update={"budget": before})
    fact = admitted("k1", job_spec(ROLES, queue="q0")).model_copy(update={"adopted": owner})
    shard.add(m.JobQueued(kind="job_queued", fact=0, job_id=fact.job_id), facts=[fact])
    if after is not None:
        said = PodsBack(kind="pods_back", job_id=fact.job_id, uids=("uid-0",), budget=after)
        shard.add(back("uid-0").model_copy(update={"budget": after}), facts=[said])
    shard.add(allocation())
    assert broken(shard) == wrong


CHAT = Service(kind="Deployment", name="chat", uid="u", min_replicas=1)


def replicas(nominal: int) -> Shard:
    """Two replicas of a service that is guaranteed one, in a queue of so much; the first has started."""
    body = tree([quota(nominal)], [quota(9000)], policy=Policy(min_runtime_seconds=0, preset="fair"))
    shard = Shard(node_seen("node-a", gpus=8), body=body)
    owner = OWNER.model_copy(update={"service": CHAT, "priority": -1})
    for key in ("k1", "k2"):
        fact = admitted(key, job_spec(ROLES, queue="q0")).model_copy(update={"adopted": owner})
        shard.add(m.JobQueued(kind="job_queued", fact=0, job_id=fact.job_id), facts=[fact])
    shard.add(allocation(), allocation(placement(devices=(1,)), key="k2"))
    return shard


def test_a_minimum_does_not_borrow_and_what_is_beyond_it_does() -> None:
    assert broken(replicas(2000)) == set()
    assert broken(replicas(1000)) == set()
    assert broken(replicas(0)) == {"I6"}


@pytest.mark.parametrize(("stopped", "wrong"), [("k1", {"minimum"}), ("k2", set())])
def test_a_plan_leaves_the_minimum_of_a_service(stopped: str, wrong: set[str]) -> None:
    shard = replicas(2000)
    for key in ("k1", "k2")[: 1 if stopped == "k1" else 2]:
        shard.add(m.Started(kind="started", run_id=first_run(key)))
    shard.queued("k3", job_spec(ROLES, queue="q0", priority_class="high"))
    victim = first_run(stopped)
    place = placement(devices=(2,))
    said = {"job_id": id_of("k3"), "basis_n": 1, "policy": 1, "engine": "test-1", "ts": 1, "preset": "fair"}
    kept = mark("k3", cause="preemption", victims=(victim,), preset="fair", placements=(place,))
    plan = PlanProposed.model_validate(
        {"kind": "plan_proposed", "cause": "preemption", "victims": (victim,), "placements": (place,), **said}
    )
    why = Reason(code=Code.PREEMPTED)
    gone = m.Revoked(kind="revoked", run_id=victim, reason=why, then="requeue", by=id_of("k3"))
    shard.add(gone, kept, facts=[plan])
    assert broken(shard) == wrong


def back(*uids: str) -> m.BackInLine:
    return m.BackInLine(kind="back_in_line", job_id=id_of("k1"), uids=uids)


def test_a_permit_names_the_pods_that_were_adopted_or_came_back_or_were_made() -> None:
    shard = adopted()
    shard.add(allocation(), permit("uid-0"))
    assert broken(shard) == set()

    shard = adopted()
    shard.add(back("uid-9"), facts=[PodsBack(kind="pods_back", job_id=id_of("k1"), uids=("uid-9",))])
    shard.add(allocation(), permit("uid-9"))
    assert broken(shard) == set()

    shard = Shard()
    shard.queued()
    shard.allocated()
    shard.permitted("uid-3")
    assert broken(shard) == set()


@pytest.mark.parametrize("uid", ["uid-0", "uid-1"])
def test_a_permit_of_pods_that_nobody_has_seen_is_found(uid: str) -> None:
    shard = Shard()
    shard.queued()
    shard.add(allocation(), permit(uid))
    assert broken(shard) == {"I3"}

    shard = adopted()
    shard.add(back("uid-9"), facts=[PodsBack(kind="pods_back", job_id=id_of("k1"), uids=("uid-9",))])
    shard.add(allocation(), permit(uid))
    assert broken(shard) == {"I3"}


def test_pods_come_back_only_when_the_binder_said_so() -> None:
    shard = adopted()
    shard.add(back("uid-9"), facts=[PodsBack(kind="pods_back", job_id=id_of("k1"), uids=("uid-8",))])
    assert broken(shard) == {"adopted"}


def test_what_is_out_of_line_does_not_start_and_only_users_pods_put_a_job_there() -> None:
    out = m.OutOfLine(kind="out_of_line", job_id=id_of("k1"))
    shard = adopted()
    shard.add(out)
    shard.add(allocation())
    assert broken(shard) == {"adopted"}
    shard = Shard()
    shard.queued()
    shard.add(out)
    assert broken(shard) == {"adopted"}


# -- idleness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("warned", "seconds", "policy", "right"),
    [
        pytest.param((1,), 3600, "requeue", True, id="long after its warning"),
        pytest.param((), 3600, "requeue", False, id="without a warning"),
        pytest.param((1, 0), 3600, "requeue", False, id="after its warning was taken back"),
        pytest.param((1,), 10, "requeue", False, id="too soon after its warning"),
        pytest.param((1,), 3600, "warn", False, id="where the policy only warns"),
    ],
)
def test_an_idle_run_is_stopped_only_long_after_its_warning(
    warned: tuple[int, ...], seconds: int, policy: str, right: bool
) -> None:
    shard = Plan(policy={"idle": policy})
    for idle_seconds in warned:
        shard.add(m.Warned(kind="warned", run_id=first_run(), idle_seconds=idle_seconds))
    idle = RunIdle(kind="run_idle", run_id=first_run(), idle_seconds=3600)
    shard.add(shard.revoke(reason=Reason(code=Code.IDLE), by="reclamation"), facts=[idle], ms=seconds * 1000)
    assert broken(shard) == (set() if right else {"idle"})


# -- the word that stops a run, and the brake on mass stops


def lost(key: str, node: str, code: Code = Code.NODE_LOST, **more: Any) -> tuple[m.Revoked, RunLost]:
    """A stop for a node that seems lost, with what reclamation said of it."""
    reason = Reason(code=code, field=f"nodes.{node}")
    fact = RunLost(kind="run_lost", run_id=first_run(key), reason=reason, nodes=(node,), **more)
    observed = "" if more.get("told") else node
    kind = {"kind": "revoked", "run_id": first_run(key), "then": "requeue", "by": "reclamation"}
    return m.Revoked.model_validate({**kind, "reason": reason, "observed": observed}), fact


def on_nodes(*nodes: str, **policy: Any) -> Shard:
    """One run of one GPU on each of these nodes."""
    shard = Shard(*(node_seen(name) for name in nodes), body=tree([quota(64_000)], policy=Policy(**policy)))
    for node in nodes:
        shard.queued(node, spec=job_spec(role(), queue="q0"))
        shard.allocated(placement(node=node), key=node)
        shard.permitted("u-0", run=first_run(node))
        shard.add(m.Started(kind="started", run_id=first_run(node)))
    return shard


def test_a_run_is_stopped_for_a_lost_node_only_when_reclamation_said_so_of_a_node_of_its_own() -> None:
    for code in (Code.NODE_LOST, Code.NODE_SHRUNK):
        stop, fact = lost("node-a", "node-a", code)
        said = on_nodes("node-a", "node-b")
        said.add(stop, facts=[fact])
        assert broken(said) == set()
        for facts in ([], [node_seen("node-a", gpus=0)], [node_seen("node-a", ready=False)]):
            unsaid = on_nodes("node-a", "node-b")
            unsaid.add(stop, facts=facts)
            assert broken(unsaid) == {"stops"}
    elsewhere = on_nodes("node-a", "node-b")
    elsewhere.add(*lost("node-a", "node-b")[:1], facts=[lost("node-a", "node-b")[1]])
    assert broken(elsewhere) == {"stops"}


def test_a_run_is_stopped_for_a_drain_by_an_operator_or_by_a_cordon_with_a_place_elsewhere() -> None:
    drain = DrainRequested(kind="drain_requested", node="node-a", evict=True)
    reason = Reason(code=Code.NODE_DRAINED, field="nodes.node-a")
    evicted = m.Revoked(kind="revoked", run_id=first_run("node-a"), reason=reason, then="requeue", by="operator")
    for fact, right in ((drain, True), (drain.model_copy(update={"evict": False}), False)):
        shard = on_nodes("node-a", "node-b")
        shard.add(m.NodeDrained(kind="node_drained", node="node-a"), evicted, facts=[fact])
        assert broken(shard) == (set() if right else {"stops"})
    stop, fact = lost("node-a", "node-a", Code.NODE_DRAINED)
    place = placement(node="node-b", devices=(1,))
    kept = mark("node-a", cause="cordon", placements=(place,))
    for records, cordoned, right in (([kept], "restart", True), ([], "restart", False), ([kept], "keep", False)):
        shard = on_nodes("node-a", "node-b", cordoned=cordoned)
        shard.add(stop, *records, facts=[fact])
        assert broken(shard) == (set() if right else {"stops"})


@pytest.mark.parametrize(("asked", "wrong"), [(["lab"], set()), ([""], set()), (["other"], {"I13"}), ([], {"I13"})])
def test_a_run_goes_back_in_line_only_at_its_owners_or_an_operators_word(asked: list[str], wrong: set[str]) -> None:
    shard, reason = on_nodes("node-a"), Reason(code=Code.REQUEUE_ASKED)
    run_id = first_run("node-a")
    job = run_id.partition("-")[0]
    facts = [RequeueRequested(kind="requeue_requested", job_id=job, tenant=tenant) for tenant in asked]
    shard.add(m.Revoked(kind="revoked", run_id=run_id, reason=reason, then="requeue", by="lab"), facts=facts)
    assert broken(shard) == wrong


def test_no_more_than_a_part_of_a_pool_is_stopped_by_what_was_observed_within_a_while() -> None:
    names = tuple(f"node-{letter}" for letter in "abcdefgh")
    for second, ms, told, right in (
        ("node-b", 0, False, True),
        ("node-c", 0, False, False),
        ("node-c", 0, True, True),
        ("node-c", 700_000, False, True),
    ):
        shard = on_nodes(*names)
        for node in dict.fromkeys(("node-a", "node-b", second)):
            stop, fact = lost(node, node, told=told and node == second)
            shard.add(stop, facts=[fact], ms=ms if node == second else 1)
        assert broken(shard) == (set() if right else {"stops"})  # two of eight are a quarter


# -- pods that end before their gang


def gives_back(release: str) -> Shard:
    """A gang of two GPUs on a quota of three: a pod of it ends, and another job takes two."""
    shard = Shard(body=tree([quota(3000)]))
    shard.queued("g", spec=job_spec(role(replicas=2, release=release), queue="q0"))
    shard.allocated(placement(), placement(1, devices=(1,)), key="g")
    shard.permitted("u-0", "u-1", run=first_run("g"))
    shard.add(m.Started(kind="started", run_id=first_run("g")))
    absent = run_absent(first_run("g")).model_copy(update={"ranks": (1,)})
    shard.add(m.Released(kind="released", run_id=first_run("g"), ranks=(1,)), facts=[absent])
    shard.queued("h", spec=job_spec(role(replicas=2), queue="q0"))
    shard.allocated(placement(node="node-b"), placement(1, node="node-b", devices=(1,)), key="h")
    return shard


def test_quota_comes_back_with_each_pod_that_ends_unless_its_role_goes_together() -> None:
    assert broken(gives_back("pod")) == set()
    assert broken(gives_back("together")) == {"release"}


@pytest.mark.parametrize(
    ("rule", "own", "seconds", "right"),
    [
        pytest.param({"action": "fail"}, None, 3600, True, id="its queue says so"),
        pytest.param({"action": "off"}, None, 3600, False, id="its queue says that it may be idle"),
        pytest.param({"action": "fail", "reclaim_seconds": 7200}, None, 3600, False, id="its queue gives it longer"),
        pytest.param({"action": "fail"}, {"allow_idle": True}, 3600, False, id="the job may be idle"),
        pytest.param(
            {"action": "fail", "jobs_choose": False}, {"allow_idle": True}, 3600, True, id="the job may not choose"
        ),
    ],
)
def test_an_idle_run_is_stopped_as_its_queue_and_its_job_say(
    rule: dict[str, Any], own: dict[str, Any] | None, seconds: int, right: bool
) -> None:
    queues = (Queue(name="q0"), Queue.model_validate({"name": "q1", "quotas": [quota(1000)], "idle": rule}))
    body = config_body(*queues, policy=Policy(preset="fair", idle="warn"))
    shard = Plan(body=body, victim={"idle": JobIdle(**own)} if own else {})
    shard.add(m.Warned(kind="warned", run_id=first_run(), idle_seconds=1))
    idle = RunIdle(kind="run_idle", run_id=first_run(), idle_seconds=3600)
    shard.add(shard.revoke(reason=Reason(code=Code.IDLE), by="reclamation"), facts=[idle], ms=seconds * 1000)
    assert broken(shard) == (set() if right else {"idle"})


# -- one GPU model ----------------------------------------------------------------------------------------------------


def on_two_nodes(known: int, shape: JobSpec, *places: tuple[str, int, int], adopted: bool = False) -> set[str]:
    """What a job breaks whose pods are on these nodes and devices, with so many thousandths: an H100 and an A100."""
    shard = Shard(node_seen("node-a", gpu_model="H100"), node_seen("node-b", gpu_model="A100"))
    shard.add(m.FormatRaised(kind="format_raised", format=known))
    fact = admitted("k1", shape)
    fact = fact.model_copy(update={"adopted": MADE}) if adopted else fact
    shard.add(m.JobQueued(kind="job_queued", fact=0, job_id=fact.job_id), facts=[fact])
    roles = [role.name for role in shape.roles for _ in range(role.gang)]
    pods = [
        Placement(rank, name, node, (device,), milli)
        for rank, (name, (node, device, milli)) in enumerate(zip(roles, places, strict=True))
    ]
    shard.allocated(*pods)
    return broken(shard)


MADE = Adopted(api_version="batch/v1", owner_kind="Job", owner_name="j", owner_uid="u", priority=0)
BOTH, ONE = (("node-a", 0, 1000), ("node-b", 0, 1000)), (("node-a", 0, 1000), ("node-a", 1, 1000))
TWO_ROLES = (role("one"), role("two"))


@pytest.mark.parametrize(
    ("known", "shape", "places", "adopted", "wrong"),
    [
        pytest.param(6, job_spec(role(replicas=2)), BOTH, False, {"model"}, id="a role on two models"),
        pytest.param(6, job_spec(role(replicas=2)), ONE, False, set(), id="a role on one model"),
        pytest.param(5, job_spec(role(replicas=2)), BOTH, False, set(), id="a job of an older ledger"),
        pytest.param(6, job_spec(role(replicas=2, mixed_models=True)), BOTH, False, set(), id="it may be mixed"),
        pytest.param(6, job_spec(*TWO_ROLES), BOTH, False, set(), id="two roles"),
        pytest.param(6, job_spec(*TWO_ROLES, launcher="torchrun"), BOTH, False, {"model"}, id="under a launcher"),
        pytest.param(6, job_spec(*TWO_ROLES), BOTH, True, {"model"}, id="two roles of users' pods"),
    ],
)
def test_the_pods_of_a_gang_are_on_one_model(
    known: int, shape: JobSpec, places: Any, adopted: bool, wrong: set[str]
) -> None:
    assert on_two_nodes(known, shape, *places, adopted=adopted) == wrong


@pytest.mark.parametrize(("launcher", "wrong"), [("torchrun", {"model"}), ("plain", set())])
def test_shares_under_a_launcher_have_a_device_each(launcher: Any, wrong: set[str]) -> None:
    shape = job_spec(role(replicas=2, gpus=0, gpu_milli=500), launcher=launcher)
    assert on_two_nodes(6, shape, ("node-a", 0, 500), ("node-a", 0, 500)) == wrong
    assert on_two_nodes(6, shape, ("node-a", 0, 500), ("node-a", 1, 500)) == set()


@pytest.mark.parametrize(("second", "wrong"), [((1, 2), {"model"}), ((2, 3), set())])
def test_several_shares_of_pods_under_a_launcher_have_a_device_each(second: tuple[int, ...], wrong: set[str]) -> None:
    shard = Shard(node_seen("node-a"))
    shard.add(m.FormatRaised(kind="format_raised", format=6))
    spec = job_spec(role(replicas=2, gpus=0, gpu_milli=500, gpu_parts=2), launcher="torchrun")
    shard.queued(spec=spec)
    shard.allocated(placement(devices=(0, 1), gpu_milli=500), placement(1, devices=second, gpu_milli=500))
    assert broken(shard) == wrong
