"""The limit of a tenant's pods: what counts, when it is refused, and what a change of the configuration does."""

import pytest

from tessera_schemas.base import job_id
from tessera_schemas.config import Limits, Tenant
from tessera_schemas.facts import CancelRequested
from tessera_schemas.ledger import JobTurnedAway
from tests.builders import SHARD, admitted, config_proposed, job_spec, role
from tests.rounds import Rounds


def limit(rounds: Rounds, pods: int | None) -> None:
    body = rounds.state.config.body
    assert body is not None
    tenants = (Tenant(name="lab", limits=Limits(pods=pods)), Tenant(name="other"))
    rounds.commit(config_proposed(body.model_copy(update={"tenants": tenants}), rounds.state.config.version))


def limited(pods: int | None) -> Rounds:
    rounds = Rounds(nodes={"node-a": 8})
    limit(rounds, pods)
    return rounds


def asked(rounds: Rounds) -> int:
    use = rounds.state.tenant_use.get("lab")
    return 0 if use is None else use.pods


def submit(rounds: Rounds, key: str, pods: int, **more: int) -> dict[str, int]:
    """Numbers of the refusal; none when the job was taken in."""
    fact = admitted(key, job_spec(role(replicas=pods, gpus=0, **more)))
    turned = [r for r in rounds.commit(fact).records if isinstance(r, JobTurnedAway)]
    assert [reason.field for record in turned for reason in record.reasons] == ["limits.pods"] * len(turned)
    return dict(turned[0].reasons[0].numbers) if turned else {}


def test_so_many_pods_of_live_jobs_and_none_more_until_some_have_ended() -> None:
    rounds = limited(5)
    assert submit(rounds, "first", 3) == {}
    assert submit(rounds, "second", 3) == {"pods": 3, "wanted_pods": 3, "limit_pods": 5}
    assert submit(rounds, "third", 2) == {}
    rounds.commit(CancelRequested(kind="cancel_requested", job_id=job_id(SHARD, "lab", "first"), tenant="lab"))
    assert asked(rounds) == 2
    assert submit(rounds, "fourth", 3) == {}


def test_two_jobs_of_one_message_do_not_pass_the_limit_together() -> None:
    rounds = limited(3)
    both = [admitted(key, job_spec(role(replicas=2, gpus=0))) for key in ("one", "two")]
    turned = [r for r in rounds.commit(*both).records if isinstance(r, JobTurnedAway)]
    assert len(turned) == 1
    assert asked(rounds) == 2


def test_an_elastic_job_counts_at_its_largest() -> None:
    rounds = limited(5)
    assert submit(rounds, "elastic", 1, min_replicas=1, max_replicas=6)["wanted_pods"] == 6
    assert submit(rounds, "smaller", 1, min_replicas=1, max_replicas=5) == {}


@pytest.mark.parametrize("before", [None, 100])
def test_a_new_limit_counts_what_is_there_and_evicts_nobody(before: int | None) -> None:
    rounds = limited(before)
    assert submit(rounds, "first", 4) == {}
    limit(rounds, 2)
    assert asked(rounds) == 4
    rounds.settle()
    assert rounds.state.runs.get(rounds.job("first").run_id) is not None
    assert submit(rounds, "second", 1)["pods"] == 4
    limit(rounds, None)
    assert asked(rounds) == 0
    assert submit(rounds, "third", 100) == {}
