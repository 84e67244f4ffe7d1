"""Replay refuses every ledger that this engine would not have written."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tessera.client.cli import app
from tessera.client.commands.ledger_care.ledger import replayed
from tessera.client.connect.where import Where
from tessera.client.ledger.reading import ledger_of
from tessera.client.ledger.replay import ReplayReport, verify
from tessera.client.ledger.witnesses import Known, newest_known
from tessera.client.outcomes import Exit
from tessera.engine import ENGINE_ID
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.memory.broker import MemoryBroker
from tessera.kernel.memory.bus import MemoryBus
from tessera.kernel.ports import Message, Outgoing
from tessera.projection.events import events_of
from tessera_schemas import subjects
from tessera_schemas.config import ConfigBody, Limits, Policy, Queue, Tenant
from tessera_schemas.events import CURSOR_HEADER
from tessera_schemas.facts import CancelRequested, PodsMade, RunStarted
from tessera_schemas.shard.ledger_form import Head, chain_after
from tessera_schemas.subjects import event
from tests.builders import SHARD, admitted, config_body, job_spec, node_seen, queue, role
from tests.contract.golden_files import FOLDER
from tests.ledgers import Committed, rechain
from tests.rounds import Rounds, share
from tests.virtual_time import ImpatientClock, VirtualClock


def good() -> list[bytes]:
    ledger = Committed().begin()
    ledger.run_to_its_end("k1", gpus=2, replicas=2)
    ledger.run_to_its_end("k2", gpus=8)
    ledger.commit(checkpoint=True)
    return ledger.stored


def allocation(stored: list[bytes]) -> int:
    """The n of the first message that places something."""
    return next(n for n, data in enumerate(stored, start=1) if b'"allocated"' in data)


def placements(message: dict[str, Any]) -> list[dict[str, Any]]:
    (record,) = (r for r in message["records"] if r["kind"] == "allocated")
    return record["placements"]  # type: ignore[no-any-return]


def test_a_good_ledger_is_recomputed_to_the_last_record() -> None:
    stored = good()
    report = verify(stored)
    assert report.findings == []
    assert report.ok
    assert report.messages == report.recomputed == report.n == len(stored)
    assert report.orders == 2
    assert report.not_recomputed == report.orders_not_recomputed == 0
    assert len(report.state_hash) == 64


def test_an_empty_ledger_is_a_good_one() -> None:
    assert verify([]).ok


def test_a_placement_on_other_devices_is_refused_although_every_hash_is_right() -> None:
    stored = good()
    at = allocation(stored)
    tampered = rechain(stored, at, lambda m: placements(m)[0].update(devices=[6, 7]))
    report = verify(tampered)
    assert not report.ok
    assert f"message {at}: record 0 is" in report.findings[0]
    assert "[6,7]" in report.findings[0]


def test_a_device_given_twice_is_refused_even_under_an_engine_that_is_not_ours() -> None:
    stored = good()
    at = allocation(stored)

    def change(message: dict[str, Any]) -> None:
        message["engine"] = "elsewhere-9"
        placements(message)[1].update(devices=placements(message)[0]["devices"])

    report = verify(rechain(stored, at, change))
    assert report.not_recomputed == 1
    assert any("does not fit" in text or "device 0 has 0 left" in text for text in report.findings)


def renamed(message: dict[str, Any]) -> None:
    message["engine"] = "elsewhere-9"


def test_a_forged_placement_whose_message_names_another_engine_is_refused() -> None:
    """Nobody recomputes what another engine decided, so that its name must not be anybody's choice."""
    stored = good()
    at = allocation(stored)

    def change(message: dict[str, Any]) -> None:
        renamed(message)
        placements(message)[0].update(devices=[6, 7])

    report = verify(rechain(stored, at, change))
    assert f"message {at}: its engine is elsewhere-9, after {ENGINE_ID}, and it opens no epoch" in report.findings


def test_decisions_of_another_engine_in_its_epoch_are_valid_and_reported_unrecomputed() -> None:
    stored = good()
    for at in range(1, len(stored) + 1):
        stored = rechain(stored, at, renamed)
    report = verify(stored)
    assert (report.ok, report.complete, report.findings) == (True, False, [])
    assert (report.not_recomputed, report.other_engines) == (len(stored), {"elsewhere-9": len(stored)})


def test_a_kept_head_reveals_a_ledger_that_was_cut_or_rewritten_with_new_hashes() -> None:
    stored = good()
    whole = verify(stored)
    anchor = Head.parse(f"{whole.n}:{whole.chain}")
    assert verify(stored, anchor).anchored
    assert verify(stored[:-2], anchor).findings == [
        f"the ledger ends at {len(stored) - 2}, before its anchor at {len(stored)}: it was cut"
    ]

    def other_input(message: dict[str, Any]) -> None:
        message["facts"][0]["fact"].update(why="somebody else")

    made = Committed().begin()
    made.commit(CancelRequested(kind="cancel_requested", job_id="a" * 20, tenant="lab", why="a typing error"))
    end = verify(made.stored)
    changed = rechain(made.stored, end.n, other_input)
    assert verify(changed).ok  # nothing else can tell: the decision is the same
    report = verify(changed, Head(end.n, end.chain))
    assert "the anchor says" in report.findings[0]


@pytest.mark.parametrize("text", ["", "12", "12:", "x:" + "0" * 64, "12:" + "0" * 63, "12:" + "g" * 64])
def test_what_is_no_head_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write N:HASH"):
        Head.parse(text)


def test_the_command_ends_with_a_code_of_its_own_when_something_could_not_be_recomputed(tmp_path: Path) -> None:
    release = FOLDER / "ledgers" / "0.3-demo.jsonl"
    said = CliRunner().invoke(app, ["replay", "--verify", "--from-file", str(release)])
    assert said.exit_code == Exit.NOT_RECOMPUTED
    assert "the rest is not proved" in said.stdout
    mine = tmp_path / "ours.jsonl"
    mine.write_bytes(b"".join(data + b"\n" for data in good()))
    assert CliRunner().invoke(app, ["replay", "--verify", "--from-file", str(mine)]).exit_code == Exit.OK
    anchored = ["replay", "--verify", "--from-file", str(mine), "--anchor", f"99:{'0' * 64}"]
    assert CliRunner().invoke(app, anchored).exit_code == Exit.FAILED


@pytest.mark.parametrize(
    ("sentence", "change", "words"),
    [
        ("half a gang", lambda m: placements(m).pop(), "not placed whole"),
        ("a node that is not there", lambda m: placements(m)[0].update(node="node-z"), "node-z"),
        ("a decision left out", lambda m: m["records"].clear(), "is missing"),
        ("a policy that is not in force", lambda m: m.update(policy=7), "policy 7"),
        ("a time before the last one", lambda m: m.update(ts=1), "goes back"),
        ("facts_upto that goes back", lambda m: m.pop("facts_upto"), "goes back"),
        ("a younger epoch without its record", lambda m: m.update(epoch=9), "epoch 9"),
        ("starts watched from later on", lambda m: m.update(starts_since=m["ts"] + 1), "still to come"),
        ("facts that wait in the middle of an epoch", lambda m: m.update(facts_wait=True), "outlive their deadlines"),
    ],
)
def test_a_tampered_message_is_refused(sentence: str, change: Any, words: str) -> None:
    stored = good()
    report = verify(rechain(stored, allocation(stored), change))
    assert not report.ok, sentence
    assert any(words in finding for finding in report.findings), report.findings


def test_an_order_that_does_not_follow_from_its_state_is_refused() -> None:
    ledger = Committed().begin()
    ledger.commit(admitted("k1"), admitted("k2"))
    line = ledger.line()
    ledger.commit(orders=(line.model_copy(update={"jobs": line.jobs[::-1]}),))
    report = verify(ledger.stored)
    assert "the order of pool default, made from state 4, is not the one that follows" in report.findings[0]


def test_a_fact_said_by_a_service_that_may_not_say_it_is_refused() -> None:
    stored = good()
    report = verify(rechain(stored, 3, lambda m: m["facts"][0].update(service="admission")))
    assert "is not admission's to say" in report.findings[0]


def test_a_fact_taken_in_twice_is_refused() -> None:
    stored = good()
    report = verify(rechain(stored, 4, lambda m: m["facts"][0].update(seq=1)))
    assert "out of order" in report.findings[0]


def test_a_checkpoint_that_does_not_hash_is_refused() -> None:
    stored = good()

    def change(message: dict[str, Any]) -> None:
        message["records"][0]["state_hash"] = "0" * 64

    report = verify(rechain(stored, len(stored), change))
    assert "hashes to" in report.findings[-1]


def test_a_gap_is_refused() -> None:
    stored = good()
    report = verify([*stored[:4], *stored[5:]])
    assert "ledger message 5 calls itself 6" in report.findings[-1]
    assert report.n == 4


def test_a_fork_is_refused() -> None:
    stored = good()
    other = rechain(stored, 2, lambda m: m.update(tx="another-tx"))
    report = verify([*stored[:4], *other[4:]])
    assert "fork" in report.findings[-1]
    assert report.n == 4


def test_an_unknown_record_is_refused_and_never_skipped() -> None:
    stored = good()
    message = json.loads(stored[-1])
    message["records"].append({"kind": "wished"})
    report = verify([*stored[:-1], json.dumps(message).encode()])
    assert "cannot be read by this build" in report.findings[-1]


def test_an_allocation_over_quota_is_refused() -> None:
    ledger = Committed().begin(node_seen("node-a"), body=config_body(queue(gpu_milli=4000)))
    ledger.commit(admitted("k1", job_spec(role(gpus=4))))
    ledger.commit(orders=(ledger.line(),))
    at = allocation(ledger.stored)

    def change(message: dict[str, Any]) -> None:
        message["facts"][0]["fact"]["body"]["queues"][0]["quotas"][0]["nominal"] = 3000

    report = verify(rechain(ledger.stored, 2, change))
    assert any(f"message {at}: " in finding and "over its quota" in finding for finding in report.findings)


def preempted() -> list[bytes]:
    rounds = Rounds(nodes={"node-a": 8, "node-b": 8}, preset="priority")
    for key in ("a", "b"):
        rounds.submit(key, gpus=8, priority="low")
        rounds.settle()
    rounds.submit("urgent", gpus=8, priority="urgent")
    rounds.settle()
    assert rounds.evicted() == [["b"]]
    return rounds.stored


def plan_in(message: dict[str, Any]) -> dict[str, Any]:
    (fact,) = (taken["fact"] for taken in message["facts"] if taken["fact"]["kind"] == "plan_proposed")
    return fact  # type: ignore[no-any-return]


def planned(stored: list[bytes]) -> int:
    return next(n for n, data in enumerate(stored, start=1) if b'"plan_proposed"' in data)


def test_a_proposed_plan_is_recomputed_from_the_state_it_was_made_from() -> None:
    report = verify(preempted())
    assert (report.findings, report.plans, report.plans_not_recomputed) == ([], 1, 0)


def test_a_plan_with_another_victim_is_refused_even_with_all_its_consequences_changed() -> None:
    stored = preempted()
    at = planned(stored)

    def change(message: dict[str, Any]) -> None:
        text = json.dumps(message)
        (victim,) = plan_in(message)["victims"]
        other = next(r for r in allocated_before(stored, at) if r != victim)
        swapped = json.loads(text.replace(victim, other).replace("node-b", "node-a"))
        message.clear()
        message.update(swapped)

    report = verify(rechain(stored, at, change))
    wrong = [text for text in report.findings if "is not the one that follows" in text]
    assert len(wrong) == 1
    assert wrong[0].startswith(f"message {at}: the plan for job")


def allocated_before(stored: list[bytes], before: int) -> list[str]:
    """The runs that were allocated before that message."""
    records = [record for data in stored[: before - 1] for record in json.loads(data).get("records", ())]
    return [f"{record['job_id']}-{record['attempt']}" for record in records if record["kind"] == "allocated"]


@pytest.mark.parametrize(
    ("sentence", "change", "words"),
    [
        ("a state that was never reached", {"basis_n": 10**6}, "never reached"),
        ("another policy", {"policy": 9}, "cannot have seen"),
        ("a time before that of its state", {"ts": 1}, "cannot have seen"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_plan_that_claims_what_it_cannot_have_seen_is_refused(
    sentence: str, change: dict[str, Any], words: str
) -> None:
    stored = preempted()
    report = verify(rechain(stored, planned(stored), lambda m: plan_in(m).update(change)))
    assert any(words in text for text in report.findings), sentence


def test_a_plan_of_another_engine_is_counted_and_not_called_wrong() -> None:
    stored = preempted()
    report = verify(rechain(stored, planned(stored), lambda m: plan_in(m).update(engine="elsewhere-9")))
    assert (report.findings, report.plans, report.plans_not_recomputed) == ([], 0, 1)
    assert (report.complete, report.other_engines) == (False, {"elsewhere-9": 1})


def grown() -> list[bytes]:
    """A run of two pods on one node that grows by one to its largest."""
    ledger = Committed().begin(node_seen("node-a"), body=config_body(policy=Policy(grow_after_seconds=0)))
    job = admitted("k1", job_spec(role(replicas=2, max_replicas=3, gpus=2)))
    ledger.commit(job)
    ledger.commit(orders=(ledger.line(),))
    ledger.commit(PodsMade(kind="pods_made", run_id=f"{job.job_id}-1", uids=("uid-0", "uid-1")))
    ledger.commit(RunStarted(kind="run_started", run_id=f"{job.job_id}-1"))
    return ledger.stored


def limited(gpus: int) -> ConfigBody:
    return config_body().model_copy(update={"tenants": (Tenant(name="lab", limits=Limits(gpus=gpus)),)})


def grown_by(message: dict[str, Any]) -> list[dict[str, Any]]:
    (record,) = (r for r in message["records"] if r["kind"] == "grown")
    return record["placements"]  # type: ignore[no-any-return]


def test_the_growth_of_a_run_is_recomputed() -> None:
    assert verify(grown()).findings == []


@pytest.mark.parametrize(
    ("sentence", "change", "words"),
    [
        ("by devices that its gang has", lambda m: grown_by(m)[0].update(devices=[0, 1]), "device 0 has 0 left"),
        (
            "by fewer devices than its role asks for",
            lambda m: grown_by(m)[0].update(devices=[4]),
            "asked for 2 devices",
        ),
        ("on a node that nobody knows", lambda m: grown_by(m)[0].update(node="node-z"), "no such node"),
        ("in a role that it does not have", lambda m: grown_by(m)[0].update(role="driver"), "it has no roles"),
        (
            "beyond its largest",
            lambda m: grown_by(m).append({**grown_by(m)[0], "rank": 3, "devices": [6, 7]}),
            "role worker grows to 4 pods, it asks for 3 at most",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_that_grew_as_it_may_not_is_refused_whoever_decided_it(sentence: str, change: Any, words: str) -> None:
    def tamper(message: dict[str, Any]) -> None:
        change(message)
        message["engine"] = "elsewhere-9"

    stored = grown()
    report = verify(rechain(stored, len(stored), tamper))
    assert any(words in finding for finding in report.findings), (sentence, report.findings)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (config_body(queue(gpu_milli=5000)), "over its quota"),
        (limited(5), "over its limit of GPUs"),
    ],
    ids=["its queue's quota", "its tenant's limit"],
)
def test_a_run_that_grew_over_what_it_may_use_is_refused(body: ConfigBody, words: str) -> None:
    """As if the configuration had been another: what the gang holds it allows, what the run grew by it does not."""

    def change(message: dict[str, Any]) -> None:
        message["facts"][0]["fact"]["body"] = body.model_dump(mode="json", exclude_defaults=True)

    stored = grown()
    report = verify(rechain(stored, 2, change))
    assert any(f"message {len(stored)}: " in finding and words in finding for finding in report.findings)


@pytest.mark.parametrize(("n", "wrong"), [(0, ""), (3, "torn tail: it ends at 0, and EVENTS knows message 3")])
async def test_events_about_a_record_that_the_ledger_lacks_are_found(n: int, wrong: str) -> None:
    broker = MemoryBroker(VirtualClock())
    broker.add_shard(SHARD)
    ledger = ledger_of(MemoryBus(broker), SHARD)
    broker.store(Outgoing(event(SHARD, "lab", "default", "job.bound.v1"), b"{}", headers={CURSOR_HEADER: f"{n}.1"}))
    known = await newest_known(ledger, Where(SHARD))
    assert await known.contradiction(ledger) == wrong


async def test_a_head_that_redis_was_made_from_and_the_ledger_does_not_have_is_a_fork() -> None:
    broker = MemoryBroker(VirtualClock())
    broker.add_shard(SHARD)
    ledger = ledger_of(MemoryBus(broker), SHARD)
    (stored, *_) = grown()
    broker.store(Outgoing(subjects.ledger(SHARD), stored))
    same, other = Head(1, chain_after(stored)), Head(1, "f" * 64)
    assert await Known("Redis", 1, same).contradiction(ledger) == ""
    assert await Known("Redis", 1, other).contradiction(ledger) == (
        "fork: message 1 is another one than that from which Redis was made"
    )


Change = Callable[[list[Outgoing]], Any]


def replaced(at: int, **data: Any) -> Change:
    """One event says something else, in its data; a value of None takes the field off."""

    def change(events: list[Outgoing]) -> None:
        body = json.loads(events[at].data)
        body["data"] = {name: value for name, value in {**body["data"], **data}.items() if value is not None}
        events[at] = replace(events[at], data=json.dumps(body, separators=(",", ":")).encode())

    return change


def beside(out: Outgoing) -> dict[str, str]:
    """The place in the ledger of a record that is not there."""
    return {CURSOR_HEADER: out.headers[CURSOR_HEADER] + "9"}


def moved(at: int, subject: str) -> Change:
    return lambda events: events.__setitem__(at, replace(events[at], subject=subject))


async def held_against_events(change: Change) -> ReplayReport:
    """The replay of a good ledger beside its public events, after `change` of what the stream holds."""
    broker = MemoryBroker(ImpatientClock())
    broker.add_shard(SHARD)
    shard, events = Shard(), list[Outgoing]()
    for seq, data in enumerate(good(), start=1):
        broker.store(Outgoing(subjects.ledger(SHARD), data))
        entry = decode_entry(Message("", seq, data))
        for made in events_of(SHARD, entry.message, shard.state):
            events.append(Outgoing(made.subject, made.data, headers={CURSOR_HEADER: str(made.cursor)}))
        shard.fold(entry)
    change(events)
    for out in events:
        broker.store(out)
    ledger = ledger_of(MemoryBus(broker), SHARD)
    return await replayed(ledger, None, SHARD, ledger.events())


async def test_the_events_that_follow_from_the_ledger_are_the_stored_ones() -> None:
    report = await held_against_events(lambda events: None)
    assert (report.findings, report.notes) == ([], [])
    assert report.events > 10


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (replaced(1, name="another-job"), "says "),
        (replaced(4, attempt=None), "says "),
        (replaced(4, attempt=7), "says "),
        (moved(3, event(SHARD, "ops", "default", "job.bound.v1")), "is on events."),
        (lambda events: events.__delitem__(3), "is missing"),
        (lambda events: events.insert(4, events[3]), "stands behind"),
        (lambda events: events.insert(5, replace(events[4], headers=beside(events[4]))), "comes from no record"),
        (lambda events: events.append(replace(events[-1], headers={})), "carries no cursor"),
        (lambda events: events.__setitem__(2, replace(events[2], data=b"[]")), "its envelope is"),
    ],
    ids=["name", "field-gone", "attempt", "subject", "missing", "twice", "invented", "alien", "broken"],
)
async def test_an_event_that_does_not_follow_from_the_ledger_is_found(change: Change, finding: str) -> None:
    report = await held_against_events(change)
    assert any(finding in text for text in report.findings), report.findings
    assert report.wrong == len(report.findings) == 1


async def test_a_stream_of_events_that_grew_too_old_at_its_beginning_is_compared_from_there_on() -> None:
    report = await held_against_events(lambda events: events.__delitem__(slice(0, 5)))
    assert report.findings == []


async def test_events_that_are_not_published_yet_are_no_finding() -> None:
    report = await held_against_events(lambda events: events.__delitem__(slice(-2, None)))
    assert report.findings == []
    assert report.notes == ["2 public events that follow from the ledger are not published yet"]


async def test_an_event_of_an_older_release_may_lack_an_optional_field() -> None:
    report = await held_against_events(replaced(1, name=None))
    assert report.findings == []
    assert report.notes == ["1 public events lack fields that this build gives, as those of an older release do"]


def lending(engine: str, **job: Any) -> list[str]:
    """The findings about a ledger that another engine wrote, in which a job of 4 GPUs borrows 2 of its neighbour's."""
    rounds = Rounds(Queue(name="all"), share("owner", 4), share("borrower", 4), evictions_max=3)
    rounds.submit("borrows", gpus=4, queue="borrower", **job)
    rounds.settle()

    def change(message: dict[str, Any]) -> None:
        message["facts"][0]["fact"]["body"] = lent.model_dump(mode="json", exclude_defaults=True)

    body = rounds.state.config.body
    lent = body.model_copy(update={"queues": (Queue(name="all"), share("owner", 6), share("borrower", 2))})
    stored = rechain(rounds.stored, 2, change)
    for at in range(1, len(stored) + 1):
        stored = rechain(stored, at, lambda message: message.update(engine=engine))
    return verify(stored).findings


def test_work_that_may_not_be_evicted_and_borrows_is_refused_whoever_decided_it() -> None:
    """What is recomputed is one thing; that what was lent can be taken back must hold of every engine's decisions."""
    assert lending("elsewhere-9") == []
    (said,) = lending("elsewhere-9", preemptible=False)
    assert "may not be evicted, and borrows ('', 'gpu_milli') for queue borrower: it wants 4000, 2000 are left" in said
    assert lending("tessera-3", preemptible=False) == []  # by which everybody could
