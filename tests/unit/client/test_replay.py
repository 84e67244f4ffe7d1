"""Replay refuses every ledger that this engine would not have written."""

import json
from typing import Any

import pytest

from tessera.client.replay import verify
from tests.builders import admitted, config_body, job_spec, node_seen, queue, role
from tests.ledgers import Committed, rechain


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
    assert "does not fit" in report.findings[0] or "device 0 has 0 left" in report.findings[0]


def test_what_another_engine_decided_within_the_rules_is_counted_and_not_called_wrong() -> None:
    stored = good()

    def change(message: dict[str, Any]) -> None:
        message["engine"] = "elsewhere-9"

    report = verify(rechain(stored, 4, change))
    assert (report.ok, report.not_recomputed, report.recomputed) == (True, 1, len(stored) - 1)


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
