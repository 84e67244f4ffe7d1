"""Service and Ingress of a session: there before its pod, gone after it, and made for nobody else."""

from typing import Any

from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import RUN_LABEL, SHARD_LABEL
from tessera_schemas.job import JobSpec, Session
from tests.builders import SHARD, admitted, config_body, config_proposed
from tests.unit.binder.cluster_world import World, train

FORM = {"host": "nb.example.com", "path": "/{tenant}/{job}", "ingress_class": "nginx", "annotations": {"a.io/b": "c"}}


def made(world: World, kind: str) -> list[Json]:
    return [version.object for version in world.core.list(kind)[0]]


def notebook(ingress: bool = True, **more: Any) -> JobSpec:
    spec: JobSpec = train(session=Session(kind="notebook", ingress=ingress), **more)
    worker = spec.roles[0]
    template = worker.template.model_validate(worker.template.model_dump() | {"ports": [{"port": 8888}]})
    return spec.model_copy(update={"roles": (worker.model_copy(update={"template": template}),)})


async def configured(world: World, form: Json | None = FORM) -> None:
    body = config_body(defaults={"sessions": {"ingress": form}})
    await world.commit(config_proposed(body, expected_version=world.state.tree.version))


async def test_a_session_that_asks_for_an_ingress_has_one_that_leads_to_its_port() -> None:
    async with World() as world:
        await configured(world)
        job = await world.submit(spec=notebook())
        (service,), (ingress,), (pod,) = made(world, "services"), made(world, "ingresses"), world.pods()
        assert service["spec"]["selector"] == {RUN_LABEL: f"{job}-1"}
        assert service["spec"]["ports"] == [{"name": "session", "port": 80, "targetPort": 8888}]
        assert (service["spec"]["publishNotReadyAddresses"], "clusterIP" in service["spec"]) == (True, False)
        meta, name = ingress["metadata"], service["metadata"]["name"]
        assert meta["labels"] == service["metadata"]["labels"]
        assert (meta["labels"][SHARD_LABEL], meta["annotations"]["a.io/b"]) == (SHARD, "c")
        assert meta["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Service", "name": name, "uid": service["metadata"]["uid"]}
        ]
        backend = {"service": {"name": name, "port": {"number": 80}}}
        path = {"path": f"/lab/{job}", "pathType": "Prefix", "backend": backend}
        assert ingress["spec"] == {
            "ingressClassName": "nginx",
            "tls": [{"hosts": ["nb.example.com"]}],
            "rules": [{"host": "nb.example.com", "http": {"paths": [path]}}],
        }
        said = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
        assert said["TESSERA_SESSION_URL"] == f"https://nb.example.com/lab/{job}/"
        assert said["TESSERA_SESSION_PATH"] == f"/lab/{job}/"


async def test_one_that_asks_for_none_has_none_and_is_told_no_address() -> None:
    async with World() as world:
        await configured(world)
        await world.submit(spec=notebook(ingress=False))
        assert made(world, "services") == made(world, "ingresses") == []
        names = {one["name"] for one in world.pods()[0]["spec"]["containers"][0]["env"]}
        assert not names & {"TESSERA_SESSION_URL", "TESSERA_SESSION_PATH"}


async def test_both_go_when_the_session_has_ended_and_the_next_run_has_its_own_at_the_same_address() -> None:
    async with World() as world:
        await configured(world)
        job = await world.submit(spec=notebook(seconds=60))
        (first,) = made(world, "ingresses")
        world.core.vanish("lab", f"{job}-1-0")
        await world.run(12)
        (second,) = made(world, "ingresses")
        assert (first["metadata"]["name"][-2:], second["metadata"]["name"][-2:]) == ("-1", "-2")
        assert [one["spec"]["rules"][0]["host"] for one in (first, second)] == ["nb.example.com"] * 2
        await world.run(80)
        assert world.job(job).phase == "succeeded"
        assert made(world, "services") == made(world, "ingresses") == []


async def test_an_answer_that_was_lost_makes_no_second_attempt() -> None:
    async with World() as world:
        await configured(world)
        world.core.faults.lose_answers("create", 2)
        job = await world.submit(spec=notebook())
        assert world.current(job).attempt == 1
        assert len(made(world, "ingresses")) == 1


async def test_a_strangers_ingress_of_that_name_ends_the_attempt_with_its_name_and_stays() -> None:
    async with World() as world:
        await configured(world)
        fact = admitted("k1", notebook())
        name = f"run-{fact.job_id}-1"
        world.core.create("ingresses", "lab", {"metadata": {"name": name}, "spec": {}})
        await world.commit(fact)
        await world.run(10)
        assert world.said("bind_failed")[0].reason.detail == f"ingress {name} exists and is not ours"
        assert world.current(fact.job_id).attempt == 2
        assert [one["metadata"]["name"] for one in made(world, "ingresses")] == [name, f"run-{fact.job_id}-2"]


async def test_a_configuration_that_lost_its_form_meanwhile_ends_the_attempt_by_that_name() -> None:
    async with World() as world:
        fact = admitted("k1", notebook())
        await world.commit(fact)
        await world.run(2)
        assert "the configuration has none by now" in world.said("bind_failed")[0].reason.detail
        assert world.pods() == made(world, "services") == []
        await configured(world)
        await world.run(120)
        assert world.job(fact.job_id).phase == "running"
