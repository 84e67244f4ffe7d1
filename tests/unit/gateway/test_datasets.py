"""`/v1/datasets`: who sees which data sets, on which nodes, and who tells; what `explain` says of a run's data."""

import asyncio
from typing import Any

import pytest

from tessera.engine.explain.explanation import explain
from tessera.gateway.operations.routes import ROUTES
from tessera.gateway.reading.groups import dataset_places
from tessera_schemas.cluster.node_terms import ToldPlaces
from tessera_schemas.config import Level
from tessera_schemas.job import DatasetHint
from tessera_schemas.shard.records import DatasetTold
from tests.builders import admitted, config_proposed, job_spec, node_seen, role
from tests.ledgers import Committed
from tests.unit.gateway.gateway_world import SECONDS, World

GIB = 2**30
CORPUS = job_spec(role(gpus=1), datasets=(DatasetHint(name="corpus", size_bytes=512 * GIB),))


def test_a_data_set_is_on_the_nodes_that_used_it_and_a_run_says_what_it_read() -> None:
    ledger = Committed().begin(node_seen("node-a"))
    first = admitted("k1", CORPUS)
    ledger.commit(first)
    ledger.start(first.job_id, "k1")
    (place,) = dataset_places(ledger.state, "lab", {"default"})
    assert (place.tenant, place.dataset, place.nodes, place.size_bytes) == ("lab", "corpus", ("node-a",), 512 * GIB)
    assert place.used_ts == ledger.ts
    told = explain(ledger.state, first.job_id, ledger.ts)
    assert told is not None
    assert any("had to read 512Gi of its data sets, 9m9s of reading" in sentence for sentence in told.sentences)
    ledger.commit(second := admitted("k2", CORPUS))
    ledger.start(second.job_id, "k2")
    told = explain(ledger.state, second.job_id, ledger.ts)
    assert told is not None
    assert "Its nodes had 512Gi of its data sets from earlier runs." in told.sentences


def test_a_waiting_job_says_where_its_data_is_and_what_reading_it_anew_takes() -> None:
    ledger = Committed().begin(node_seen("node-a", gpus=1), node_seen("node-b", gpus=0))
    ledger.commit(first := admitted("k1", CORPUS))
    ledger.start(first.job_id, "k1")
    maps = DatasetHint(name="maps", size_bytes=GIB)
    ledger.commit(second := admitted("k2", CORPUS.model_copy(update={"datasets": (*CORPUS.datasets, maps)})))
    told = explain(ledger.state, second.job_id, ledger.ts)
    assert told is not None
    assert "Its data set corpus (512Gi, 9m9s of reading) is on node-a." in told.sentences
    assert "Its data set maps (1Gi, 1s of reading) is on no node." in told.sentences


def test_another_tenant_and_another_pool_see_nothing_of_it() -> None:
    ledger = Committed().begin(node_seen("node-a"))
    ledger.commit(job := admitted("k1", CORPUS))
    ledger.start(job.job_id, "k1")
    assert dataset_places(ledger.state, "other", {"default"}) == ()
    assert dataset_places(ledger.state, "lab", {"elsewhere"}) == ()
    assert len(dataset_places(ledger.state, None, {"default"})) == 1


def test_nodes_that_say_what_they_have_are_listed_for_tenants_that_are_there() -> None:
    says = ("*/maps", "lab/corpus", "la/b-corpus")
    ledger = Committed().begin(node_seen("node-a", datasets=says), node_seen("node-b", datasets=("lab/corpus",)))
    listed = {each.dataset: (each.tenant, each.told_nodes) for each in dataset_places(ledger.state, "lab", {"default"})}
    assert listed == {"corpus": ("lab", ("node-a", "node-b")), "maps": ("*", ("node-a",))}
    assert [each.dataset for each in dataset_places(ledger.state, "other", {"default"})] == ["maps"]
    assert len(dataset_places(ledger.state, None, {"default"})) == 2


def racks(ledger: Committed) -> None:
    body = ledger.state.config.body
    topology = Level(name="zone", label="zone"), Level(name="rack", label="rack")
    ledger.commit(config_proposed(body.model_copy(update={"topology": topology}), ledger.state.config.version))


def test_a_data_set_is_listed_with_the_domains_that_have_it() -> None:
    labels = {"node-a": "r1", "node-b": "r1", "node-c": "r2"}
    nodes = [node_seen(name, labels={"zone": "z", "rack": rack}) for name, rack in labels.items()]
    ledger = Committed().begin(*nodes, node_seen("node-d", datasets=("*/maps",)))
    racks(ledger)
    ledger.commit(first := admitted("k1", CORPUS))
    ledger.start(first.job_id, "k1")
    maps, corpus = dataset_places(ledger.state, "lab", {"default"})
    assert (maps.told_nodes, maps.level, maps.domains) == (("node-d",), "", ()), "it is in no rack"
    assert (corpus.nodes, corpus.level) == (("node-a",), "rack")
    assert [(each.domain, each.has, each.nodes) for each in corpus.domains] == [("r1", 1, 2)]


def test_the_jobs_that_wait_for_a_data_set_are_named_each_to_its_tenant() -> None:
    ledger = Committed().begin(node_seen("node-a", gpus=0, datasets=("*/maps",)))
    maps = CORPUS.model_copy(update={"datasets": (DatasetHint(name="maps", size_bytes=GIB),)})
    jobs = [admitted(f"k{at}", CORPUS) for at in range(9)]
    ledger.commit(*jobs, admitted("m", maps), admitted("o", CORPUS, "other"))
    listed = {(each.tenant, each.dataset): each for each in dataset_places(ledger.state, "lab", {"default"})}
    assert sorted(listed) == [("*", "maps"), ("lab", "corpus")]
    corpus = listed["lab", "corpus"]
    assert (corpus.size_bytes, corpus.nodes, corpus.waiting, corpus.used_ts) == (512 * GIB, (), 9, 0)
    assert [each.job_id for each in corpus.readers] == sorted(job.job_id for job in jobs)[:8]
    assert listed["*", "maps"].waiting == 1
    assert len(dataset_places(ledger.state, None, {"default"})) == 3
    assert [each.dataset for each in dataset_places(ledger.state, "lab", {"elsewhere"})] == []


async def test_the_gateway_lists_what_is_where(world: World) -> None:
    token = world.token("lab")
    async with world.gateway():
        answer = await world.ask("GET", "/v1/datasets", token)
    assert (answer.status, answer.body["items"]) == (200, [])


PLACES = "/v1/datasets/corpus/places"
EVERYTHING = [(route.method, route.path) for route in ROUTES]


async def test_a_tenant_tells_where_its_data_set_is(world: World) -> None:
    await world.commit(node_seen("node-a"), node_seen("node-b"))
    token, says = world.token("lab"), {"size_bytes": 512 * GIB, "nodes": ["node-a"]}
    async with world.gateway():
        answer = await world.ask("PUT", PLACES, token, {**says, "gone": ["node-b"]})
        assert (answer.status, answer.body["state"]) == (202, "accepted"), answer.body
        told = {"kind": "tell_dataset", "v": 1, "dataset": "corpus", "tenant": "lab", **says, "gone": ["node-b"]}
        assert world.commands == [("lab", told)]
        await world.commit(DatasetTold(kind="dataset_told", tenant="lab", dataset="corpus", places=ToldPlaces(**says)))
        listed = await settled(world, token)
        assert [(row["dataset"], row["nodes"], row["size_bytes"]) for row in listed] == [
            ("corpus", ["node-a"], 512 * GIB)
        ]
        again = await world.ask("PUT", PLACES, token, says)
    assert (again.status, again.body["state"], len(world.commands)) == (200, "known", 1)


async def settled(world: World, token: str) -> list[dict[str, Any]]:
    """The list, once the gateway has followed the ledger to its end."""
    async with asyncio.timeout(SECONDS):
        while (answer := await world.ask("GET", "/v1/datasets", token)).body["as_of"] < world.committed.state.n:
            await asyncio.sleep(0.01)
    return list(answer.body["items"])


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (PLACES, {"size_bytes": 1, "nodes": ["node-x"]}, "nodes[0]"),
        (PLACES, {"nodes": ["node-a"]}, ""),
        (PLACES, {}, ""),
        (PLACES, {"size_bytes": 1, "nodes": ["node-a"], "gone": ["node-a"]}, ""),
        (PLACES, {"size_bytes": 1, "nodes": ["node-a"], "tenant": "ops"}, "tenant"),
        ("/v1/datasets/Corpus/places", {"size_bytes": 1, "nodes": ["node-a"]}, "dataset"),
    ],
    ids=["no such node", "no size", "nothing", "both", "another's", "no name"],
)
async def test_what_no_data_set_can_be_is_refused_by_its_field(
    world: World, path: str, body: dict[str, Any], field: str
) -> None:
    await world.commit(node_seen("node-a"))
    token = world.token("lab")
    async with world.gateway():
        answer = await world.ask("PUT", path, token, body)
    assert (answer.status, answer.body.get("field", "")) == (422, field), answer.body
    assert not world.commands


async def test_a_token_for_places_tells_them_and_does_nothing_else(world: World) -> None:
    await world.commit(node_seen("node-a"), node_seen("node-b"))
    token, says = world.token("lab", only="places"), {"size_bytes": 1, "nodes": ["node-a"]}
    async with world.gateway():
        told = await world.ask("PUT", PLACES, token, says)
        others = [
            await world.ask(method, path, token, json={} if method != "GET" else None)
            for method, path in EVERYTHING
            if (method, path) != ("PUT", "/v1/datasets/{dataset}/places")
        ]
        unknown = await world.ask("GET", "/v1/no-such", token)
    assert (told.status, told.body["state"], len(world.commands)) == (202, "accepted", 1), told.body
    assert {(each.status, each.code) for each in others} == {(403, "Forbidden")}
    assert "this token is for places only" in str(others[0].body)
    assert (unknown.status, len(others)) == (403, len(EVERYTHING) - 1)


async def test_an_operator_tells_of_no_tenants_data(world: World) -> None:
    await world.commit(node_seen("node-a"))
    token = world.token(None)
    async with world.gateway():
        answer = await world.ask("PUT", PLACES, token, {"size_bytes": 1, "nodes": ["node-a"]})
    assert (answer.status, answer.code, world.commands) == (403, "Forbidden", [])
