"""Policy, answers, repeats, traces and the limit of recorded refusals."""

import asyncio
from typing import Any

import orjson
import pytest

from tessera.admission.handlers import reply_inbox
from tessera.admission.main import serve
from tessera.admission.settings import AdmissionSettings
from tessera.kernel.errors import InvariantViolation, Transient
from tessera.kernel.ports import Delivery, Message, Outgoing
from tessera_schemas.base import job_id
from tessera_schemas.commands import END_HEADER, REPLY_HEADER, SubmitJob
from tessera_schemas.config import ConfigBody, Queue, Tenant
from tessera_schemas.facts import CancelRequested, ConfigProposed, FactMessage, JobAdmitted, JobRefused
from tessera_schemas.job import JobIdle, Toleration
from tessera_schemas.reasons import Code
from tests.builders import SHARD, config_body, job_spec, queue
from tests.unit.admission.admission_world import World, changed, encoded, node, submit
from tests.virtual_time import VirtualClock

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CANCEL = {"kind": "cancel_job", "v": 1, "job_id": "a" * 20, "why": "enough"}


def codes(world: World) -> list[list[str]]:
    return [[r.code.value for r in fact.reasons] for fact in world.facts if isinstance(fact, JobRefused)]


async def test_an_admitted_job_becomes_one_fact_with_the_id_made_from_shard_tenant_and_key() -> None:
    world = await World.with_policy()
    await world.submits(submit("k7"))
    (fact,) = world.facts
    assert isinstance(fact, JobAdmitted)
    assert (fact.job_id, fact.tenant, fact.key) == (job_id(SHARD, "lab", "k7"), "lab", "k7")
    (stored,) = world.stored
    assert stored.subject == "fact.main.admission.job-admitted"


async def test_a_command_handled_twice_says_the_same_twice_under_one_cause() -> None:
    """So that the committer can tell; see its inbox."""
    world = await World.with_policy()
    await world.submits(submit())
    await world.submits(submit())
    first, second = world.stored
    assert (first.subject, first.data) == (second.subject, second.data)
    assert FactMessage.model_validate_json(first.data).cause == f"SUBMIT_{SHARD}.1.0"


async def test_the_same_order_under_the_same_number_of_a_stream_that_began_anew_is_another() -> None:
    """A hold, a release and a hold: the last one must not be taken for the first."""
    world = await World.with_policy()
    hold = encoded({"kind": "hold_job", "v": 1, "job_id": "a" * 20, "tenant": "lab"})
    for stored_ms in (1_000, 2_000):
        await world.handlers.on_controls([Delivery(Message(f"control.{SHARD}", 1, hold, {}, stored_ms), 1, None)])
    first, second = world.stored
    assert first.data != second.data


async def test_a_command_whose_fact_got_a_number_that_was_given_before_is_kept_and_not_answered() -> None:
    """FACTS began anew: the committer would pass the fact over as taken in, and the client be told `admitted`."""
    world = await World.with_policy()
    facts = world.broker.stream(f"FACTS_{SHARD}")
    facts.last_seq = 225
    await world.room.look()
    facts.last_seq = 0
    with pytest.raises(InvariantViolation, match="FACTS_main gave number 1 after 225: it was made anew"):
        await world.submits(submit(), headers={REPLY_HEADER: "_INBOX.lab.1"})
    assert world.answers == []


async def test_a_dry_run_is_answered_like_the_submit_and_leaves_nothing() -> None:
    headers = {REPLY_HEADER: "_INBOX.lab.abc.1"}
    world = await World.with_policy()
    refused = {**changed("spec.queue", "nowhere"), "dry_run": True}
    for command in (submit(dry_run=True), refused, {**submit(dry_run=True), "spec": {"name": "odd"}}):
        await world.submits(command, headers=headers)
    await world.handlers.flush_counted()
    (_, yes), (_, no), (_, unread) = world.answers
    assert (yes.accepted, yes.job_id) == (True, job_id(SHARD, "lab", "k1"))
    assert [reason.code.value for reason in no.reasons] == ["NoSuchQueue"]
    assert {reason.code.value for reason in unread.reasons} == {"MissingField"}
    assert world.stored == []
    await world.submits(submit(), headers=headers)
    assert isinstance(world.facts[-1], JobAdmitted)


async def test_the_trace_goes_on_with_the_fact() -> None:
    world = await World.with_policy()
    await world.submits(submit(), headers={"traceparent": TRACE})
    (fact,) = world.facts
    assert isinstance(fact, JobAdmitted)
    assert fact.trace == TRACE
    passed_on = world.stored[0].headers["traceparent"]
    assert passed_on != TRACE
    assert passed_on.split("-")[1] == TRACE.split("-")[1]


@pytest.mark.parametrize("trace", ["", "nonsense", TRACE.upper()])
async def test_a_malformed_trace_is_dropped(trace: str) -> None:
    world = await World.with_policy()
    await world.submits(submit(), headers={"traceparent": trace})
    (fact,) = world.facts
    assert isinstance(fact, JobAdmitted)
    assert fact.trace == ""


async def test_the_answer_says_admitted_or_all_reasons() -> None:
    world = await World.with_policy()
    headers = {REPLY_HEADER: "_INBOX.lab.abc.1"}
    await world.submits(submit(), headers=headers)
    await world.batch(("lab", submit("k2", spec={})), headers=headers)
    (to, yes), (_, no) = world.answers
    assert to == "_INBOX.lab.abc.1"
    assert (yes.accepted, yes.job_id) == (True, job_id(SHARD, "lab", "k1"))
    assert not no.accepted
    assert {reason.code.value for reason in no.reasons} == {"MissingField"}


@pytest.mark.parametrize(("phase", "ended"), [("succeeded", "succeeded"), ("running", None), ("", None)])
async def test_a_repeated_submit_is_answered_with_the_end_of_its_job_where_it_asks(
    phase: str, ended: str | None
) -> None:
    world = await World.with_policy()
    if phase:
        await world.job_seen(job_id(SHARD, "lab", "k1"), phase=phase)
    for wish in ({}, {END_HEADER: "1"}):
        await world.submits(submit(), headers={REPLY_HEADER: "_INBOX.lab.abc.1", **wish})
    (_, plain), (_, asked) = world.answers
    assert plain.ended is None
    assert (asked.ended and asked.ended.phase) == ended


LONG_AGO = 10**12


@pytest.mark.parametrize(
    ("shown", "existing", "codes"),
    [
        ({}, True, []),
        ({"digest": "0" * 16}, False, [Code.IDEMPOTENCY_CONFLICT]),
        ({"phase": "succeeded", "ended_ts": -LONG_AGO}, False, []),  # its key is forgotten: the views are behind
    ],
)
async def test_a_repeated_submit_is_answered_by_what_the_views_show_of_its_key(
    shown: dict[str, Any], existing: bool, codes: list[Code]
) -> None:
    world = await World.with_policy()
    await world.submits(submit())
    (fact,) = world.facts
    assert isinstance(fact, JobAdmitted)
    await world.job_seen(fact.job_id, **{"digest": fact.digest()[:16], "number": 7, **shown})
    await world.submits(submit(), headers={REPLY_HEADER: "_INBOX.lab.abc.1", END_HEADER: "1"})
    ((_, answer),) = world.answers
    assert (answer.existing, answer.number, [reason.code for reason in answer.reasons]) == (
        existing,
        7 if existing else 0,
        codes,
    )
    assert answer.accepted is not bool(codes)


async def test_notes_of_a_submit_go_on_with_it_and_are_no_part_of_what_a_key_stands_for() -> None:
    world = await World.with_policy()
    await world.submits(submit(notes=["--hint is passed over"]))
    await world.submits(submit())
    noted, bare = world.facts
    assert isinstance(noted, JobAdmitted)
    assert isinstance(bare, JobAdmitted)
    assert (noted.notes, bare.notes) == (("--hint is passed over",), ())
    assert noted.digest() == bare.digest()


async def test_a_refusal_goes_on_in_the_trace_of_its_submit() -> None:
    world = await World.with_policy()
    await world.submits(submit(spec={}), headers={"traceparent": TRACE})
    (fact,) = world.facts
    assert isinstance(fact, JobRefused)
    assert fact.trace == TRACE


async def test_a_submit_is_answered_without_its_end_while_the_views_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await World.with_policy()

    async def fail(*_: object) -> bytes:
        raise Transient("Redis is away")

    monkeypatch.setattr(world.ports.store, "fields_as_of", fail)
    await world.submits(submit(), headers={REPLY_HEADER: "_INBOX.lab.abc.1", END_HEADER: "1"})
    ((_, answer),) = world.answers
    assert answer.accepted
    assert answer.ended is None


async def test_nobody_is_answered_before_the_fact_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await World.with_policy()

    async def refuse(_batch: list[Outgoing]) -> list[int]:
        raise Transient("no acknowledgement")

    monkeypatch.setattr(world.ports.bus, "publish_all", refuse)
    with pytest.raises(Transient):
        await world.submits(submit(), headers={REPLY_HEADER: "_INBOX.lab.1"})
    assert world.answers == []


@pytest.mark.parametrize(
    "wanted",
    [
        "",
        "_INBOX.lab",
        "_INBOX.lab.",
        "_INBOX.other.1",
        "_INBOX.lab-2.1",
        "_INBOX.lab.>",
        "_INBOX.lab.*",
        "_INBOX.lab.a..b",
        "_INBOX.lab.a b",
        "_INBOX.lab.a\r\nPUB control.main 2",
        "_INBOX.lab.a\n",
        "submit.main.lab",
        "$JS.API.STREAM.DELETE.LEDGER_main",
        "_INBOX.lab." + "x" * 300,
    ],
)
def test_only_an_inbox_of_the_tenant_itself_is_answered(wanted: str) -> None:
    assert reply_inbox(wanted, "lab") == ""
    assert reply_inbox("_INBOX.lab.Ab_1-2.3", "lab") == "_INBOX.lab.Ab_1-2.3"


async def test_before_the_first_configuration_the_answer_is_not_configured() -> None:
    world = World()
    await world.views(None, [node()])
    await world.policy.look_again()
    await world.submits(submit())
    assert codes(world) == [["NotConfigured"]]


async def test_a_job_right_behind_the_first_configuration_is_judged_by_it() -> None:
    world = World()
    await world.views(None)
    await world.policy.look_again()
    await world.views(config_body())
    await world.submits(submit())
    assert [type(fact) for fact in world.facts] == [JobAdmitted]


async def test_without_any_views_jobs_wait_while_cancels_go_on() -> None:
    world = World()
    job, cancel = await world.submits(submit(), CANCEL)
    assert isinstance(job, Transient)
    assert not isinstance(cancel, Exception)
    assert [fact.kind for fact in world.facts] == ["cancel_requested"]
    assert world.policy.problem() is not None


async def test_with_redis_away_the_last_known_policy_stays_in_force() -> None:
    world = await World.with_policy()
    world.faults.away = True
    world.clock.now += 3600
    await world.submits(submit(), changed("spec.queue", "nowhere"))
    assert [fact.kind for fact in world.facts] == ["job_admitted", "job_refused"]


async def test_with_redis_away_nobody_is_told_that_nothing_is_configured() -> None:
    """The first configuration may have come into force since we last saw the views."""
    world = World()
    await world.views(None)
    await world.policy.look_again()
    world.faults.away = True
    world.clock.now += 1
    (job,) = await world.submits(submit())
    assert isinstance(job, Transient)
    assert world.facts == []
    world.faults.away = False
    await world.views(config_body())
    looking = asyncio.create_task(world.policy.keep_fresh())
    while isinstance((await world.submits(submit()))[0], Transient):
        await asyncio.sleep(0)
    looking.cancel()
    assert [fact.kind for fact in world.facts] == ["job_admitted"]


async def test_views_that_are_being_rebuilt_do_not_undo_what_is_known() -> None:
    world = await World.with_policy()
    world.store.shared.wipe()
    world.clock.now += 1
    await world.policy.look_again()
    await world.submits(submit())
    assert [fact.kind for fact in world.facts] == ["job_admitted"]


async def test_views_that_are_lost_while_they_are_read_do_not_undo_what_is_known() -> None:
    world = await World.with_policy()
    await world.views(config_body())
    world.clock.now += 1
    world.faults.wipes_at = "get"
    await world.policy.look_again()
    await world.submits(submit())
    assert [fact.kind for fact in world.facts] == ["job_admitted"]


async def test_a_queue_that_was_configured_a_moment_ago_is_found_before_the_job_is_refused() -> None:
    world = await World.with_policy()
    await world.views(config_body(Queue(name="research"), Queue(name="fresh")))
    world.clock.now += 0.1
    await world.submits(changed("spec.queue", "fresh"))
    assert [fact.kind for fact in world.facts] == ["job_admitted"]


async def test_a_gang_no_node_could_hold_is_refused_until_such_a_node_is_seen() -> None:
    world = await World.with_policy(nodes=[node(gpus=1)])
    await world.submits(submit("k1"))
    assert codes(world) == [["Inadmissible"]]
    await world.views(None, [node("node-b", gpus=4)])
    world.clock.now += 1
    await world.batch(("other", CANCEL), ("lab", submit("k2")))
    assert world.facts[-1].kind == "job_admitted"


async def test_a_job_with_gpus_is_admitted_where_all_nodes_have_the_taint_of_gpu_nodes() -> None:
    world = await World.with_policy(nodes=[node(taints=(("nvidia.com/gpu", "present", "NoSchedule"),))])
    await world.submits(submit("k1"))
    assert world.facts[-1].kind == "job_admitted"
    without = {"cpu_milli": 1000, "memory_bytes": 2**30}
    await world.submits(changed("spec.roles.0.resources", without) | {"key": "k2"})
    assert codes(world)[-1:] == [["Inadmissible"]]


async def test_a_job_is_admitted_where_its_tenant_bears_the_taint_of_all_nodes_and_those_of_others_are_not() -> None:
    bears = Tenant(name="lab", tolerations=(Toleration(key="own"),))
    body = config_body().model_copy(update={"tenants": (bears, Tenant(name="other"))})
    world = await World.with_policy(body, nodes=[node(taints=(("own", "x", "NoSchedule"),))])
    await world.batch(("other", submit("k1")), ("lab", submit("k2")))
    assert sorted(fact.kind for fact in world.facts) == ["job_admitted", "job_refused"]
    assert codes(world) == [["Inadmissible"]]


async def test_a_job_is_admitted_while_the_nodes_lack_what_they_had() -> None:
    world = await World.with_policy(nodes=[node(gpus=0)])
    await world.views(None, [], [node(lost_ts=1000)])
    world.clock.now += 1
    await world.policy.look_again()
    await world.submits(submit("k1"))
    assert world.facts[-1].kind == "job_admitted"


async def test_an_instance_is_admitted_as_soon_as_a_node_of_the_pool_has_such_ones() -> None:
    world = await World.with_policy(nodes=[node(gpus=8)])
    asks = {"cpu_milli": 1000, "memory_bytes": 2**30, "mig_profile": "1g.10gb"}
    await world.submits(changed("spec.roles.0.resources", asks))
    assert codes(world) == [["Inadmissible"]]
    made = (("1g.10gb", 7),)
    await world.views(None, [node("node-b", gpus=1, device_profile="mig", mig_geometry="80gb", mig_instances=made)])
    world.clock.now += 1
    await world.batch(("other", CANCEL), ("lab", changed("spec.roles.0.resources", asks) | {"key": "k2"}))
    assert world.facts[-1].kind == "job_admitted"


async def test_a_busy_node_makes_nothing_inadmissible() -> None:
    busy = node(gpus=8, gpu_free=(0,) * 8, cpu_free_milli=0)
    world = await World.with_policy(nodes=[busy])
    await world.submits(submit())
    assert [fact.kind for fact in world.facts] == ["job_admitted"]


async def test_twenty_refusals_per_second_are_recorded_and_the_rest_is_counted() -> None:
    world = await World.with_policy()
    await world.batch(*(("lab", b"") for _ in range(50)), ("other", b""))
    recorded = [fact for fact in world.facts if isinstance(fact, JobRefused)]
    assert [fact.tenant for fact in recorded].count("lab") == 20
    assert [fact.tenant for fact in recorded].count("other") == 1
    await world.handlers.flush_counted()
    counted = world.facts[-1]
    assert isinstance(counted, JobRefused)
    assert (counted.tenant, counted.repeats) == ("lab", 29)
    assert len(recorded) + 1 + counted.repeats == 51
    await world.handlers.flush_counted()
    assert world.facts[-1] == counted


async def test_a_second_later_refusals_are_recorded_again() -> None:
    world = await World.with_policy(refusals_per_second=2)
    await world.submits(b"", b"", b"")
    world.clock.now += 0.5
    await world.batch(("other", CANCEL), ("other", CANCEL), ("other", CANCEL), ("lab", b""))
    assert len(codes(world)) == 3


async def test_a_count_that_could_not_be_published_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await World.with_policy(refusals_per_second=1)
    await world.submits(b"", b"", b"")
    publish_all = world.ports.bus.publish_all

    async def refuse(_batch: list[Outgoing]) -> list[int]:
        raise Transient("away")

    monkeypatch.setattr(world.ports.bus, "publish_all", refuse)
    await world.handlers.flush_counted()
    monkeypatch.setattr(world.ports.bus, "publish_all", publish_all)
    await world.handlers.flush_counted()
    counted = world.facts[-1]
    assert isinstance(counted, JobRefused)
    assert counted.repeats == 1


async def test_a_cancel_says_whether_it_is_to_be_now() -> None:
    world = World()
    await world.submits(CANCEL, CANCEL | {"now": True, "why": "at once"})
    assert [fact.now for fact in world.facts] == [False, True]


async def test_a_cancel_is_the_tenants_own_and_an_operators_is_anybodys() -> None:
    world = await World.with_policy()
    await world.submits(CANCEL)
    await world.controls(CANCEL)
    theirs, ours = world.facts
    assert isinstance(theirs, CancelRequested)
    assert isinstance(ours, CancelRequested)
    assert (theirs.tenant, ours.tenant) == ("lab", "")


async def test_a_configuration_is_proposed_without_any_policy_known() -> None:
    world = World()
    body = config_body().model_dump(mode="json", exclude_defaults=True)
    await world.controls(
        {"kind": "apply_config", "v": 1, "expected_version": 0, "body": body},
        headers={REPLY_HEADER: "_INBOX.operator.1"},
    )
    (fact,) = world.facts
    assert isinstance(fact, ConfigProposed)
    assert fact.body == config_body()
    assert world.answers[0][1].accepted


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            ConfigBody(tenants=(Tenant(name="operator"),), queues=(Queue(name="q"),)),
            [("InvalidField", "tenants.operator.name")],
        ),
    ],
    ids=["a tenant with a name of ours"],
)
async def test_a_configuration_that_asks_for_too_much_is_refused(
    body: ConfigBody, expected: list[tuple[str, str]]
) -> None:
    world = World()
    command = {"kind": "apply_config", "v": 1, "expected_version": 0, "body": body.model_dump(mode="json")}
    await world.controls(command)
    (refused,) = world.facts
    assert isinstance(refused, JobRefused)
    assert refused.tenant == "operator"
    assert [(r.code.value, r.field) for r in refused.reasons] == expected


@pytest.mark.parametrize(
    ("field", "sent"),
    [
        ("why", {**CANCEL, "why": "\x1b]0;owned\x07"}),
        ("at", {"kind": "report_checkpoint", "v": 1, "job_id": "a" * 20, "path": "s3://b/1", "at": "4000\x1b[2J"}),
        ("notes", submit(notes=["fine", "\x9b31m"])),
    ],
)
async def test_text_of_a_tenant_that_steers_a_terminal_is_refused_by_name(field: str, sent: object) -> None:
    world = await World.with_policy()
    await world.submits(sent)
    (refused,) = world.facts
    assert isinstance(refused, JobRefused)
    assert [(reason.code, reason.field) for reason in refused.reasons] == [(Code.INVALID_FIELD, field)]
    assert "printable characters only" in refused.reasons[0].detail


@pytest.mark.parametrize("sent", [b"", b"{}", {"kind": "submit_job"}, {"kind": "hold_job", "v": 1, "job_id": "a"}])
async def test_bad_input_of_an_operator_is_refused_too(sent: object) -> None:
    world = World()
    await world.controls(sent)
    assert len(codes(world)) == 1


async def test_a_dangling_name_in_a_configuration_is_named() -> None:
    world = World()
    body = {"tenants": [{"name": "a"}], "queues": [{"name": "q", "tenants": ["b"]}]}
    await world.controls({"kind": "apply_config", "v": 1, "expected_version": 0, "body": body})
    (refused,) = world.facts
    assert isinstance(refused, JobRefused)
    assert "no such tenant: b" in refused.reasons[0].detail


async def test_the_service_admits_what_waits_and_finishes_when_told_to_stop() -> None:
    clock = VirtualClock()
    world = World()
    world.clock = world.broker.clock = world.store.shared.clock = clock  # type: ignore[assignment]
    ports = type(world.ports)(
        clock, world.ports.bus, world.ports.ledger, world.store, world.ports.cluster, world.ports.health,
        world.metrics, "admission-1", lambda: "tx",
    )  # fmt: skip
    stop = asyncio.Event()
    world.broker.store(Outgoing(f"submit.{SHARD}.lab", encoded(submit())))
    running = asyncio.create_task(serve(ports, AdmissionSettings(), stop))
    await clock.run(2)
    assert world.facts == []  # nothing is known yet, and nothing is taken from the queue
    writing = asyncio.create_task(world.views(config_body()))
    await clock.run(2)
    await writing
    assert [fact.kind for fact in world.facts] == ["job_admitted"]
    assert not world.broker.stream(f"SUBMIT_{SHARD}").messages
    stop.set()
    await clock.run(2)
    assert running.done()
    await running


async def test_a_simulated_program_may_say_how_long_it_runs() -> None:
    world = await World.with_policy()
    await world.submits(changed("spec.roles.0.template.annotations", {"tessera.io/simulate-seconds": "5"}))
    assert [fact.kind for fact in world.facts] == ["job_admitted"]


async def test_a_job_larger_than_its_queues_whole_quota_is_refused_until_the_quota_is_raised() -> None:
    world = await World.with_policy(config_body(queue(gpu_milli=3000)))
    await world.submits(submit("k1"))
    assert codes(world) == [["ExceedsMaxQuota"]]
    await world.views(config_body(queue(gpu_milli=4000)))
    world.clock.now += 0.1
    await world.batch(("other", CANCEL), ("lab", submit("k2")))
    assert world.facts[-1].kind == "job_admitted"


async def test_a_job_says_what_counts_as_idle_only_where_its_queue_lets_it() -> None:
    strict = config_body(Queue.model_validate({"name": "research", "idle": {"jobs_choose": False}}))
    refusing, admitting = await World.with_policy(strict), await World.with_policy(config_body())
    command = SubmitJob(kind="submit_job", v=1, key="k1", spec=job_spec(idle=JobIdle(allow_idle=True)))
    for world in (refusing, admitting):
        await world.submits(orjson.loads(command.to_bytes()))
    (refused,), (admitted,) = refusing.facts, admitting.facts
    assert isinstance(refused, JobRefused)
    assert [(reason.code.value, reason.field) for reason in refused.reasons] == [("InvalidField", "idle")]
    assert isinstance(admitted, JobAdmitted)
    assert admitted.spec.idle == JobIdle(allow_idle=True)
