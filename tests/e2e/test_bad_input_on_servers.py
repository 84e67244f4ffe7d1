"""
Bad input on the real way: bytes on a tenant's subject, a typed refusal in its inbox, one audit record, nothing else.

Which input is refused why is held in detail by the unit tests of admission; here is one of each kind.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tessera.client.connect.connecting import open_bus
from tessera.client.connect.locating import find
from tessera.client.outcomes import Refused
from tessera.kernel.errors import Poison, Transient
from tessera.kernel.nats.bus import NatsBus
from tessera.kernel.ports import Outgoing
from tessera_schemas import subjects
from tessera_schemas.commands import REPLY_HEADER, Answer
from tessera_schemas.facts import JobRefused, NodeSeen
from tessera_schemas.job import JobSpec
from tessera_schemas.ledger import LEDGER_MESSAGE, Checkpoint, JobTurnedAway, LedgerMessage, LeftChanged
from tessera_schemas.reasons import Code
from tessera_schemas.shard.orders import HEADS_MAX, Order
from tests.e2e.live import SECONDS, Live, eventually, job
from tests.e2e.platform_checks import assert_all_is_well, stored_events

pytestmark = pytest.mark.asyncio(loop_scope="module")

RECORDED_PER_SECOND = 20  # of refusals, per tenant; more are counted
LARGEST = subjects.PAYLOAD_BYTES_MAX - 1_000  # the server counts the headers, too


def command(**changes: Any) -> dict[str, Any]:
    """A submit as a client sends it; `changes` are of the spec, those beginning with `_` of the command."""
    spec = job().model_dump(mode="json", exclude_defaults=True)
    outer = {name[1:]: value for name, value in changes.items() if name.startswith("_")}
    inner = {name: value for name, value in changes.items() if not name.startswith("_")}
    return {"kind": "submit_job", "v": 1, "key": "bad", "spec": spec | inner} | outer


def role(**changes: Any) -> list[dict[str, Any]]:
    (made,) = command()["spec"]["roles"]
    return [made | changes]


def resources(**changes: Any) -> list[dict[str, Any]]:
    return role(resources={"cpu_milli": 1000, "memory_bytes": 2**30, "gpus": 1} | changes)


def template(**changes: Any) -> list[dict[str, Any]]:
    return role(template={"image": "train:1"} | changes)


GOOD = json.dumps(command())
BAD: dict[str, tuple[Any, set[str]]] = {
    "no JSON": (b"submit my job, please", {"NotJson"}),
    "bytes that are no text": (b'{"kind": "\xff\xfe"}', {"NotJson"}),
    "brackets 100,000 deep": (b"[" * 100_000, {"NotJson"}),
    "a key twice": (GOOD.replace('"gpus": 1', '"gpus": 1, "gpus": 8').encode(), {"DuplicateKey"}),
    "NaN": (GOOD.replace("1000", "NaN").encode(), {"NotJson"}),
    "Infinity": (GOOD.replace("1000", "Infinity").encode(), {"NotJson"}),
    "1e999": (GOOD.replace("1000", "1e999").encode(), {"InvalidField"}),
    "a negative quantity": (command(roles=resources(gpus=-1)), {"InvalidField"}),
    "a quantity of zero": (command(roles=resources(cpu_milli=0)), {"InvalidField"}),
    "an unknown field": (command(colour="red"), {"UnknownField"}),
    "an unknown version": (command(_v=99), {"UnknownVersion"}),
    "an unknown kind": (command(_kind="grant_admin"), {"UnknownVersion"}),
    "a name with a line end": (command(name="my\njob"), {"InvalidField"}),
    "a queue that could leave its subject": (command(queue="default.>"), {"InvalidField", "NoSuchQueue"}),
    "another tenant's name": (command(_tenant="ops"), {"TenantMismatch"}),
    "a path of the host": (
        command(roles=template(volumes=[{"kind": "hostPath", "name": "etc", "mount_path": "/etc"}])),
        {"ForbiddenField"},
    ),
    "a privileged container": (command(roles=template(securityContext={"privileged": True})), {"ForbiddenField"}),
    "more GPUs than any node has": (command(roles=resources(gpus=9)), {"Inadmissible"}),
    "more GPUs than its queue may ever use": (
        command(roles=[resources(gpus=8)[0] | {"replicas": 5}]),
        {"ExceedsMaxQuota", "Inadmissible"},
    ),
    "everything wrong at once": (
        command(name="", queue="nowhere", hostPID=True, priority_class="royal", _tenant="ops", _v=9),
        {
            "UnknownVersion",
            "InvalidField",
            "ForbiddenField",
            "TenantMismatch",
            "NoSuchQueue",
            "NoSuchPriorityClass",
        },
    ),
}


def encoded(sent: Any) -> bytes:
    return sent if isinstance(sent, bytes) else json.dumps(sent).encode()


@dataclass
class Sender:
    """Publishes what no client of ours would, as a tenant; `answers` by the number of what was sent."""

    bus: NatsBus
    shard: str
    tenant: str
    answers: dict[int, Answer] = field(default_factory=dict)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    @asynccontextmanager
    async def of(cls, live: Live, tenant: str) -> AsyncIterator["Sender"]:
        place = find(live.home)
        async with open_bus(place, place.identity(tenant)) as bus:
            sender = cls(bus, live.platform.shard, tenant)
            await bus.listen(f"{subjects.inbox(tenant)}.bad.*", sender._on_answer)
            yield sender

    def message(self, number: int, data: bytes) -> Outgoing:
        inbox = f"{subjects.inbox(self.tenant)}.bad.{number}"
        return Outgoing(subjects.submit(self.shard, self.tenant), data, headers={REPLY_HEADER: inbox})

    async def ask(self, number: int, data: bytes) -> tuple[int, Answer]:
        """The sequence that it was stored at, and what was answered."""
        seq = await self.bus.publish(self.message(number, data))
        async with asyncio.timeout(SECONDS):
            while number not in self.answers:
                self.came.clear()
                await self.came.wait()
        return seq, self.answers[number]

    def _on_answer(self, subject: str, data: bytes) -> None:
        self.answers[int(subject.rpartition(".")[2])] = Answer.from_bytes(data)
        self.came.set()


def messages(live: Live, after: int) -> list[LedgerMessage]:
    return [LEDGER_MESSAGE.validate_json(data) for data in live.stored[after:]]


def audit(live: Live, after: int) -> list[JobRefused]:
    """The refusals that records since then cite, in order."""
    return [
        message.facts[record.fact].fact  # type: ignore[misc]
        for message in messages(live, after)
        for record in message.records
        if isinstance(record, JobTurnedAway)
    ]


def about_others(live: Live, after: int, job_id: str) -> Counter[str]:
    """
    What stands in the ledger since then that is neither of the job nor a refusal.

    The binder tells of its nodes again after it has started; that says nothing new and makes no record. What is left
    of a pool is said by whichever message is the first of a period.
    """
    found: Counter[str] = Counter()
    for message in messages(live, after):
        for taken in message.facts:
            mine = job_id in taken.fact.to_bytes().decode()
            found[taken.fact.kind] += not mine and not isinstance(taken.fact, JobRefused | NodeSeen)
        for record in message.records:
            mine = job_id in record.to_bytes().decode() or record.kind == "job_queued"
            found[record.kind] += not mine and not isinstance(record, JobTurnedAway | Checkpoint | LeftChanged)
    return +found


async def test_each_kind_of_bad_input_is_refused_with_all_reasons_and_leaves_one_record(live: Live) -> None:
    begin = live.state.n
    sent: list[int] = []
    between = None
    async with Sender.of(live, "lab") as lab:
        for number, (sentence, (data, codes)) in enumerate(BAD.items()):
            seq, answer = await lab.ask(number, encoded(data))
            sent.append(seq)
            assert not answer.accepted, sentence
            assert {reason.code for reason in answer.reasons} == codes, sentence
            if number == len(BAD) // 2:
                between = await live.submit(job("between"), "ops")
                await live.until_ended(between.job_id)
            await asyncio.sleep(1.2 / RECORDED_PER_SECOND)  # more at a time are counted and not recorded each
    assert between is not None
    assert live.phase(between.job_id) == "succeeded"
    await live.until(lambda _: len(audit(live, begin)) >= len(BAD), "every refusal is on record")
    await live.until_idle()
    assert [refused.source_seq for refused in audit(live, begin)] == sent
    assert {refused.tenant for refused in audit(live, begin)} == {"lab"}
    assert about_others(live, begin, between.job_id) == Counter()
    await assert_all_is_well(live)
    told = [json.loads(data) for subject, _, data in await stored_events(live) if subject.endswith("job.refused.v1")]
    assert len(told) == len(BAD)
    assert {event["tenant"] for event in told} == {"lab"}


async def test_an_impossible_job_is_told_what_the_largest_would_be(live: Live) -> None:
    begin = live.state.n
    async with Sender.of(live, "lab") as lab:
        _, answer = await lab.ask(1, encoded(command(roles=resources(gpus=9))))
    (reason,) = answer.reasons
    assert reason.numbers["largest_gpus"] == 8
    assert reason.numbers["largest_cpu_milli"] == 96_000
    assert "8 GPUs" in reason.sentence()
    await live.until(lambda _: len(audit(live, begin)) == 1, "it is on record")


async def test_a_flood_of_garbage_is_answered_counted_and_delays_nobody_else(live: Live) -> None:
    begin, flood = live.state.n, 400
    async with Sender.of(live, "lab") as lab:
        await lab.bus.publish_all([lab.message(number, b"garbage") for number in range(flood)])
        done = await live.submit(job("beside-the-flood"), "ops")
        await live.until_ended(done.job_id)
        await eventually(lambda: len(lab.answers) == flood, "each has its answer")
    assert live.phase(done.job_id) == "succeeded"
    assert not any(answer.accepted for answer in lab.answers.values())
    await live.until(lambda _: sum(1 + r.repeats for r in audit(live, begin)) >= flood, "each is recorded or counted")
    assert sum(1 + refused.repeats for refused in audit(live, begin)) == flood
    assert len(audit(live, begin)) < flood
    await assert_all_is_well(live)


@pytest.mark.parametrize("size", [subjects.SUBMIT_BYTES_MAX + 1, 1_000_000, LARGEST])
async def test_a_body_above_the_limit_gets_one_audit_record_and_all_reasons(live: Live, size: int) -> None:
    await live.until_idle()
    begin = live.state.n
    async with Sender.of(live, "lab") as lab:
        seq, answer = await lab.ask(1, b" " * size)
    assert [(reason.code, reason.numbers) for reason in answer.reasons] == [too_large(size)]
    done = await live.submit(job("after-the-large-one"))
    await live.until_ended(done.job_id)
    (refused,) = audit(live, begin)
    assert (refused.tenant, refused.source_seq, refused.reasons) == ("lab", seq, answer.reasons)
    assert len(refused.to_bytes()) < 500
    assert about_others(live, begin, done.job_id) == Counter()


async def test_a_body_of_one_mebibyte_is_on_record_although_it_leaves_no_room_for_an_inbox(live: Live) -> None:
    await live.until_idle()
    begin = live.state.n
    async with Sender.of(live, "lab") as lab:
        seq = await lab.bus.publish(Outgoing(subjects.submit(lab.shard, lab.tenant), b" " * 2**20))
    await live.until(lambda _: len(audit(live, begin)) > 0, "it is on record")
    await live.until_idle()
    assert [(refused.source_seq, refused.reasons[0].code) for refused in audit(live, begin)] == [(seq, Code.TOO_LARGE)]


async def test_a_flood_of_the_largest_bodies_is_answered_and_delays_nobody_else(live: Live) -> None:
    begin, flood = live.state.n, 100
    async with Sender.of(live, "lab") as lab:
        await lab.bus.publish_all([lab.message(number, b" " * LARGEST) for number in range(flood)])
        done = await live.submit(job("beside-the-large-ones"), "ops")
        await live.until_ended(done.job_id)
        await eventually(lambda: len(lab.answers) == flood, "each has its answer")
    assert live.phase(done.job_id) == "succeeded"
    await live.until(lambda _: sum(1 + r.repeats for r in audit(live, begin)) >= flood, "each is recorded or counted")
    assert sum(1 + refused.repeats for refused in audit(live, begin)) == flood
    await assert_all_is_well(live)


@pytest.mark.parametrize("size", [500_000, 3 * 2**20])
@pytest.mark.parametrize("read", [dict, JobSpec.model_validate], ids=["a mapping", "a spec that was read"])
async def test_the_sdk_refuses_what_is_too_large_before_it_sends_anything(live: Live, size: int, read: Any) -> None:
    await live.until_idle()
    begin = live.state.n
    arguments = ["x" * 32_000] * (size // 32_000 + 1)
    spec = read(command(roles=template(args=arguments))["spec"])
    with pytest.raises(Refused, match=r"TooLarge: the body is too large .*max 384Ki") as refused:
        await live.clients["lab"].submit(spec, "too-large")
    assert [reason.code for reason in refused.value.reasons] == [Code.TOO_LARGE]
    done = await live.submit(job("after-the-refusal"))
    await live.until_ended(done.job_id)
    assert audit(live, begin) == []


async def test_what_the_server_does_not_take_is_an_error_and_the_connection_goes_on(live: Live) -> None:
    async with Sender.of(live, "lab") as lab:
        with pytest.raises(Poison, match="more than the server takes"):
            await lab.bus.publish(lab.message(1, b" " * 2**20))
        _, answer = await lab.ask(2, b"garbage")
    assert not answer.accepted


def too_large(size: int) -> tuple[Code, dict[str, int]]:
    return Code.TOO_LARGE, {"bytes": size, "bytes_max": subjects.SUBMIT_BYTES_MAX}


async def test_a_tenant_can_neither_submit_for_another_nor_have_answers_sent_to_it(live: Live) -> None:
    async with Sender.of(live, "lab") as lab, Sender.of(live, "ops") as ops:
        with pytest.raises(Transient, match="may not publish"):
            await lab.bus.publish(Outgoing(subjects.submit(lab.shard, "ops"), encoded(command())))
        stray = lab.message(1, b"garbage")
        await lab.bus.publish(Outgoing(stray.subject, stray.data, headers={REPLY_HEADER: "_INBOX.ops.bad.1"}))
        await lab.ask(2, b"garbage")  # answered after it
        assert ops.answers == {}
        assert list(lab.answers) == [2]


async def test_a_job_as_large_as_the_limit_allows_goes_through(live: Live) -> None:
    spec: dict[str, Any] = command()["spec"]
    spec["roles"] = template(args=["x" * 32_000] * 3, annotations={"tessera.io/simulate-seconds": "0.1"})
    done = await live.submit(JobSpec.model_validate_json(json.dumps(spec)))
    await live.until_ended(done.job_id)
    assert live.phase(done.job_id) == "succeeded"
    await assert_all_is_well(live)


async def test_two_tenants_may_give_their_commands_the_same_message_id(live: Live) -> None:
    """As two pipelines that publish by themselves do, each under the number of its build."""
    async with Sender.of(live, "lab") as lab, Sender.of(live, "ops") as ops:
        for sender in (lab, ops):
            plain = sender.message(1, encoded(command(_key=f"build-{sender.tenant}")))
            headers = {**plain.headers, "Nats-Msg-Id": "build-42"}
            await sender.bus.publish(Outgoing(plain.subject, plain.data, headers=headers))
        await eventually(lambda: len(lab.answers) == len(ops.answers) == 1, "each is answered")
        assert [answer.accepted for answer in (lab.answers[1], ops.answers[1])] == [True, True]
        await live.until_ended(lab.answers[1].job_id, ops.answers[1].job_id)


async def test_no_service_can_suppress_another_services_facts_under_ids_that_it_can_foresee(live: Live) -> None:
    await live.until_idle()
    place = find(live.home)
    async with Sender.of(live, "lab") as lab, open_bus(place, place.identity("binder")) as binder:
        last, _ = await lab.ask(1, b"garbage")
        subject = subjects.fact(lab.shard, "admission", "job-admitted")
        for seq in range(last + 1, last + 4):
            taken = {"Nats-Msg-Id": f"{subject}:SUBMIT_{lab.shard}.{seq}"}
            await binder.publish(Outgoing(subjects.fact(lab.shard, "binder", "nothing"), b"{}", headers=taken))
        answers = [await lab.ask(number, encoded(command(_key=f"fore-{number}"))) for number in (2, 3, 4)]
        assert [answer.accepted for _, answer in answers] == [True] * 3
        await live.until_ended(*(answer.job_id for _, answer in answers))


async def test_wrong_orders_stop_no_pool(live: Live) -> None:
    """From states that never were, of pools that nobody has, and one that no ledger message could hold."""
    place, shard, jobs = find(live.home), live.platform.shard, ("a" * 20,) * HEADS_MAX
    wrong = [Order(v=1, pool="default", basis_n=2**53 - 1, ts=2**53 - 1, engine="nobody", policy=1)]
    wrong += [Order(v=1, pool=f"a-{i:02}", basis_n=1, ts=1, engine="nobody", policy=1, jobs=jobs) for i in range(12)]
    wrong += [Order(v=1, pool="default", basis_n=live.state.n, ts=1, engine="x" * 500_000, policy=1)]
    async with open_bus(place, place.identity("queueing")) as bus:
        await bus.publish_all([Outgoing(subjects.order(shard, order.pool), order.to_bytes()) for order in wrong])
    done = await live.submit(job("after-the-wrong-orders"))
    await live.until_ended(done.job_id)
    assert live.phase(done.job_id) == "succeeded"
