"""The examples of the page on what stops a run do what it says."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tessera.client.input import files
from tessera_schemas.config import Level
from tessera_schemas.facts import RunEnded
from tessera_schemas.job import JobSpec
from tessera_schemas.ledger import Finished, Requeued
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.records import GroupPodsMade, GroupRestarted, GroupStarted, RunStalled
from tests.builders import admitted, config_body, config_proposed, node_seen, run_absent
from tests.rounds import Rounds, share

PAGE = (Path(__file__).parents[3] / "docs" / "run-ends.md").read_text()


def shown(name: str = "rollouts") -> JobSpec:
    found = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
    (said,) = [each for each in found if each["name"] == name]
    return JobSpec.model_validate_json(json.dumps(files.job_spec(said, "run-ends.md")))


def running(**policy: Any) -> Rounds:
    nodes = [node_seen(name, 4, labels={"kubernetes.io/hostname": name}) for name in ("node-a", "node-b")]
    rounds = Rounds(share("default", 8, parent=None), nodes=nodes, **policy)
    rounds.commit(admitted("rollouts", shown()))
    return rounds.settle()


def fail(rounds: Rounds, rank: int) -> tuple[str, tuple[int, ...], int] | None:
    """A pod fails, and what starts again is back after its pause: the group, its ranks and the pause in seconds."""
    run = rounds.run("rollouts")
    reason = Reason(code=Code.POD_FAILED, numbers={"rank": rank, "exit_code": 1})
    ended = RunEnded(kind="run_ended", run_id=run.run_id, reason=reason, own=True, rank=rank, uid=run.uids[rank])
    message = rounds.commit(ended)
    for record in message.records:
        if isinstance(record, GroupRestarted):
            number, pause = record.restart, (record.not_before - message.ts) // 1000
            uids = tuple(f"uid-{number}-{rank}" for rank in record.ranks)
            about = {"run_id": run.run_id, "restart": number}
            rounds.commit(GroupPodsMade(kind="group_pods_made", uids=uids, **about), ms=1000 * pause)
            rounds.commit(GroupStarted(kind="group_started", **about), ms=1000)
            return record.group, record.ranks, pause
    return None


def test_the_pair_starts_again_three_times_then_its_replica_and_then_the_job() -> None:
    rounds = running()
    found = [fail(rounds, 5) for _ in range(4)]
    pair = [("pair", (4, 5), pause) for pause in (10, 20, 40)]
    assert found == [*pair, ("replica", (4, 5, 6, 7), 30)]
    # Within a replica that starts again its pairs begin anew; the other replica's have restarts of their own.
    assert [fail(rounds, 6), fail(rounds, 0)] == [("pair", (6, 7), 10), ("pair", (0, 1), 10)]
    assert [fail(rounds, 5) for _ in range(4)][-1] == ("replica", (4, 5, 6, 7), 60)
    assert [fail(rounds, 5) for _ in range(4)] == [*pair, None]
    job = rounds.job("rollouts")
    assert (job.phase, job.attempt, job.strikes) == ("evicting", 1, 0)
    rounds.settle()
    assert rounds.job("rollouts").strikes == 1


def test_a_pair_that_has_held_begins_anew() -> None:
    rounds = running(steady_seconds=600)
    assert [fail(rounds, 5) for _ in range(2)] == [("pair", (4, 5), 10), ("pair", (4, 5), 20)]
    rounds.commit(ms=600_000)
    assert fail(rounds, 5) == ("pair", (4, 5), 10)


RACK = "example.com/rack"


def pretraining() -> Rounds:
    """The example of a ladder on three racks of two nodes."""
    spec = shown("pretraining")
    nodes = [node_seen(f"{rack}-{number}", labels={RACK: rack}) for rack in ("r1", "r2", "r3") for number in (0, 1)]
    rounds = Rounds(nodes=nodes)
    levels = (Level(name="rack", label=RACK),)
    body = config_body(share("default", 64, parent=None), policy=rounds.state.tree.policy, topology=levels)
    rounds.commit(config_proposed(body, rounds.state.config.version))
    rounds.commit(admitted("pretraining", spec))
    return rounds.settle()


def hang(rounds: Rounds, rank: int) -> str:
    """The run hangs, with a pod behind: its node, and the next run is there."""
    run = rounds.run("pretraining")
    node = str(run.placements[rank].node)
    reason = Reason(code=Code.HUNG, numbers={"seconds": 900, "step": 4000})
    rounds.commit(RunStalled(kind="run_stalled", run_id=run.run_id, reason=reason, nodes=(node,)))
    rounds.settle()
    rounds.commit(ms=60_000)
    rounds.settle()
    return node


def test_a_hang_is_answered_in_place_then_elsewhere_and_then_outside_of_the_rack() -> None:
    rounds = pretraining()
    first = rounds.run("pretraining").nodes
    hang(rounds, 0)
    assert (rounds.run("pretraining").nodes, rounds.job("pretraining").avoid) == (first, ())
    bad = hang(rounds, 0)
    assert bad not in rounds.run("pretraining").nodes
    rack = bad.partition("-")[0]
    beside = next(rank for rank, node in enumerate(rounds.run("pretraining").nodes) if node.startswith(rack))
    worse = hang(rounds, beside)
    assert rounds.job("pretraining").avoid == (bad, worse, f"{RACK}={rack}")
    assert not any(node.startswith(rack) for node in rounds.run("pretraining").nodes)
    assert (rounds.job("pretraining").attempt, rounds.job("pretraining").strikes) == (4, 0)


def test_claims_on_published_devices_are_refused_beside_it_by_name() -> None:
    said = shown().model_dump(mode="json", exclude_defaults=True)
    claim = {"name": "nic", "requests": [{"name": "one", "choices": [{"device_class": "nic.example.com"}]}]}
    said["roles"][0]["resources"] = {"claims": [claim]}
    with pytest.raises(ValueError, match=r"groups\[0\]\.restart: pods of worker have claims on devices"):
        JobSpec.model_validate_json(json.dumps(said))


@pytest.mark.parametrize(
    ("code", "exit_code", "oom", "decided"),
    [
        (Code.POD_FAILED, 2, False, "rule 1 (exit code 2 or 64) says: fail"),
        (Code.POD_FAILED, 137, True, "rule 2 (OOMKilled) says: fail"),
        (Code.POD_FAILED, 75, False, "rule 3 (exit code 75) says: retry, not counted"),
        (Code.POD_FAILED, 139, False, "rule 4 (SIGBUS or SIGSEGV) says: retry elsewhere, counted"),
        (Code.NODE_RESTARTED, 255, False, "rule 6 (NodeRestarted) says: retry elsewhere, counted"),
        (Code.POD_FAILED, 1, False, ""),
        (Code.NODE_PRESSURE, 75, False, ""),
    ],
)
def test_the_rules_that_are_shown_decide_as_they_read_and_the_job_says_which_did(
    code: Code, exit_code: int, oom: bool, decided: str
) -> None:
    nodes = [node_seen(name, 4) for name in ("node-a", "node-b")]
    rounds = Rounds(share("default", 8, parent=None), nodes=nodes)
    rounds.commit(admitted("finetune", shown("finetune")))
    run = rounds.settle().run("finetune")
    reason = Reason(code=code, numbers={"rank": 0, "exit_code": exit_code}, detail="finetune-0 on node-a Error")
    rounds.commit(RunEnded(kind="run_ended", run_id=run.run_id, reason=reason, oom=oom))
    (last,) = [r for r in rounds.commit(run_absent(run.run_id)).records if isinstance(r, Requeued | Finished)]
    assert last.reason is not None
    assert last.reason.detail == "; ".join(filter(None, ("finetune-0 on node-a Error", decided)))
    assert isinstance(last, Finished) is decided.endswith("fail")


def test_the_sentence_that_is_shown_is_what_explain_says() -> None:
    retry, numbers = shown("finetune").retry, {"rank": 0, "exit_code": 75}
    reason = Reason(code=Code.POD_FAILED, numbers=numbers, detail="finetune-0 on node-a Error")
    sentence = retry.told_by(retry.find_rule(reason, "worker", oom=False), reason).sentence()
    assert sentence in " ".join(PAGE.split())
