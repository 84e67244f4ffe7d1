"""Jobs with terms about pods of other jobs, from the ledger's view: who gets which node, and who waits until when."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tessera.domain.folding.standing import NeighbourBook
from tessera_schemas.facts import AnyFact
from tessera_schemas.job import JobSpec
from tessera_schemas.reasons import Code
from tessera_schemas.work.short_form import full_job
from tests.builders import admitted, node_seen
from tests.rounds import Rounds, share

ROOT = Path(__file__).parents[3]
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
WEB, BATCH = {"app": "web"}, {"app": "batch"}


def labelled(**labels: str) -> Any:
    return {"labels": labels}


def away(labels: dict[str, str], topology: str = HOST, weight: int | None = None, **own: str) -> Any:
    return {"labels": own, "apart_from": ({"labels": labels, "topology": topology, "weight": weight},)}


def near(labels: dict[str, str], topology: str = HOST, weight: int | None = None, **own: str) -> Any:
    return {"labels": own, "near": ({"labels": labels, "topology": topology, "weight": weight},)}


def nodes(**zones: str) -> list[AnyFact]:
    return [node_seen(name, 8, labels={HOST: name, ZONE: zone}) for name, zone in zones.items()]


def world(**zones: str) -> Rounds:
    zones = zones or {"a1": "a", "a2": "a", "b1": "b"}
    return Rounds(share("research", 80, None), nodes=nodes(**zones))


def at(rounds: Rounds, key: str) -> str:
    (place,) = rounds.run(key).all_placements
    return str(place.node)


def zone(rounds: Rounds, key: str) -> str:
    return str(rounds.state.nodes.get(at(rounds, key)).label(ZONE))


def put(rounds: Rounds, key: str, **more: Any) -> None:
    rounds.submit(key, **more)
    rounds.settle()


@pytest.mark.parametrize(
    ("topology", "place"), [pytest.param(HOST, at, id="node"), pytest.param(ZONE, zone, id="zone")]
)
def test_a_job_stays_out_of_the_domain_of_pods_that_it_means(topology: str, place: Any) -> None:
    rounds = world()
    put(rounds, "web", neighbours=labelled(app="web"))
    put(rounds, "apart", neighbours=away(WEB, topology))
    put(rounds, "other", neighbours=away(BATCH, topology))
    assert place(rounds, "apart") != place(rounds, "web")
    assert place(rounds, "other") == place(rounds, "web")


@pytest.mark.parametrize("topology", [HOST, ZONE])
def test_later_pods_stay_out_of_the_domain_of_a_job_that_keeps_apart_from_them(topology: str) -> None:
    rounds = world(a1="a", b1="b")
    put(rounds, "apart", neighbours=away(WEB, topology))
    for key in ("one", "two"):
        put(rounds, key, neighbours=labelled(app="web"))
    assert {at(rounds, "one"), at(rounds, "two")}.isdisjoint({at(rounds, "apart")})


def test_who_finds_no_other_domain_waits_with_the_number_and_starts_when_the_pods_are_gone() -> None:
    rounds = world(a1="a", b1="b")
    for key in ("one", "two"):
        put(rounds, key, neighbours=away(WEB, ZONE, app="web"))
    assert {zone(rounds, "one"), zone(rounds, "two")} == {"a", "b"}
    put(rounds, "three", neighbours=away(WEB, ZONE, app="web"))
    reason = rounds.job("three").reason
    assert (reason.code, reason.numbers["nodes_with_pods_to_keep_apart_from"]) == (Code.NO_FIT, 2)
    rounds.finish("one")
    rounds.settle()
    assert rounds.running("three")


def test_jobs_that_start_in_one_message_see_each_other() -> None:
    rounds = world(a1="a", a2="a", b1="b")
    for key in ("one", "two", "three"):
        rounds.submit(key, neighbours=away(WEB, ZONE, app="web"))
    rounds.settle()
    assert [rounds.running(key) for key in ("one", "two", "three")].count(True) == 2


def test_a_job_waits_for_the_pods_that_it_is_to_be_near_and_starts_in_their_domain() -> None:
    rounds = world(a1="a", b1="b", b2="b")
    put(rounds, "near", gpus=8, neighbours=near(WEB, ZONE))
    reason = rounds.job("near").reason
    assert (reason.code, reason.numbers["nodes_far_from_pods_to_be_near"]) == (Code.NO_FIT, 3)
    put(rounds, "full", gpus=8)
    put(rounds, "web", neighbours=labelled(app="web"))
    assert zone(rounds, "web") == zone(rounds, "near") == "b"


def test_the_first_of_jobs_that_are_to_be_near_each_other_starts_anywhere_and_the_next_beside_it() -> None:
    rounds = world(a1="a", b1="b")
    for key in ("one", "two", "three"):
        put(rounds, key, gpus=2, neighbours=near(WEB, app="web"))
    assert at(rounds, "one") == at(rounds, "two") == at(rounds, "three")


def test_a_preference_decides_between_nodes_and_keeps_nobody_waiting() -> None:
    rounds = world(a1="a", b1="b")
    put(rounds, "web", gpus=1, neighbours=labelled(app="web"))
    put(rounds, "apart", gpus=1, neighbours=away(WEB, ZONE, weight=10))
    put(rounds, "free", gpus=1, neighbours=near({"app": "nothing"}, ZONE, weight=10))
    assert zone(rounds, "apart") != zone(rounds, "web")
    assert rounds.running("free")
    put(rounds, "beside", gpus=1, neighbours=near(WEB, ZONE, weight=10))
    assert zone(rounds, "beside") == zone(rounds, "web")
    alone = world(a1="a")
    put(alone, "web", neighbours=labelled(app="web"))
    put(alone, "apart", neighbours=away(WEB, ZONE, weight=10))
    assert alone.running("web", "apart")


def test_terms_mean_pods_of_their_own_tenant() -> None:
    rounds = world(a1="a")
    put(rounds, "apart", neighbours=away(WEB))
    spec = JobSpec.model_validate(
        full_job({"name": "web", "queue": "research", "gpus": 1, "image": "x", "neighbours": labelled(app="web")})
    )
    rounds.commit(admitted("web", spec, tenant="other"))
    rounds.settle()
    assert len(list(rounds.state.runs.values())) == 2


def test_a_gang_goes_near_others_and_is_refused_where_its_terms_mean_its_own_pods() -> None:
    rounds = world(a1="a", b1="b", b2="b")
    put(rounds, "web", gpus=8, neighbours=labelled(app="web"))
    put(rounds, "gang", pods=2, gpus=2, neighbours=away(WEB, ZONE))
    gang = {rounds.state.nodes.get(place.node).label(ZONE) for place in rounds.run("gang").all_placements}
    assert gang == {"a", "b"} - {zone(rounds, "web")}
    put(rounds, "own", pods=2, neighbours=away(WEB, ZONE, app="web"))
    assert rounds.job("own") is None


def test_a_node_that_moves_to_another_zone_opens_the_one_that_it_left() -> None:
    rounds = world(a1="a", a2="a")
    put(rounds, "web", neighbours=labelled(app="web"))
    put(rounds, "apart", neighbours=away(WEB, ZONE))
    assert not rounds.running("apart")
    rounds.commit(node_seen(at(rounds, "web"), 8, labels={HOST: at(rounds, "web"), ZONE: "b"}))
    rounds.settle()
    assert zone(rounds, "apart") == "a"


def test_the_book_of_a_restored_state_is_that_of_the_folded_one() -> None:
    rounds = world(a1="a", b1="b")
    put(rounds, "web", neighbours=labelled(app="web"))
    put(rounds, "two", neighbours=away(WEB, ZONE, app="web"))
    put(rounds, "three", neighbours=away(WEB, ZONE, app="web"))
    folded, restored = rounds.state.neighbours, NeighbourBook()
    restored.restore(rounds.state.jobs.values(), rounds.state.runs.values())
    assert dict(restored.standing.items()) == dict(folded.standing.items())
    assert dict(restored.waiting.items()) == dict(folded.waiting.items())


def test_a_job_that_is_preempted_keeps_out_of_no_domain_for_its_own_pods() -> None:
    rounds = world(a1="a")
    put(rounds, "one", gpus=8, neighbours=away(WEB, ZONE, app="web"), priority="low")
    put(rounds, "urgent", gpus=8, priority="high")
    assert rounds.running("urgent")
    rounds.finish("urgent")
    rounds.settle()
    assert rounds.running("one")


def test_the_example_of_the_docs_keeps_away_and_goes_near() -> None:
    page = (ROOT / "docs" / "placement.md").read_text().partition("## Pods of other jobs")[2]
    said = yaml.safe_load(page.partition("```yaml")[2].partition("```")[0])
    spec = JobSpec.model_validate(full_job({"name": "it", "queue": "research", "gpus": 1, "image": "x", **said}))
    rounds = world(a1="a", a2="a", b1="b")
    put(rounds, "cache", neighbours=labelled(app="cache"))
    put(rounds, "db", neighbours={"labels": {"app": "db"}, "near": ({"labels": {"app": "cache"}},)})
    rounds.commit(admitted("it", spec))
    rounds.settle()
    assert zone(rounds, "it") == zone(rounds, "cache")
    assert at(rounds, "it") != at(rounds, "db")
