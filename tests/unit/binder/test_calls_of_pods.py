"""Calls of the API server that a pod takes from its creation to its end, as docs/sizing.md tells them."""

from collections import Counter

import pytest

from tessera.kernel.kubernetes.connections import Connections
from tessera_schemas.cluster.labels import FINALIZER
from tessera_schemas.facts import CancelRequested
from tests.builders import admitted
from tests.contract.cluster_suite import pod
from tests.contract.cluster_worlds import over_http
from tests.unit.binder.cluster_world import World, train

OF_A_POD = {"create pods": 1, "bind pods": 1, "create events": 1, "delete pods": 1, "patch pods": 1}
OF_NO_POD = ("list pods", "list nodes", "watch pods", "watch nodes", "watch services")


async def calls_of(pods: int, *, cancels: bool) -> Counter[str]:
    """Calls of all services for a job of so many pods, from its submit until no object of it is left."""
    calls: Counter[str] = Counter()
    async with World(start_ms=1000) as world:
        for cluster in world._cluster_of.values():
            enter = cluster._enter

            async def counted(verb: str, kind: str = "pods", enter=enter) -> None:
                calls[f"{verb} {kind}"] += 1
                await enter(verb, kind)

            cluster._enter = counted  # type: ignore[method-assign]
        fact = admitted("k1", train(pods, seconds=5))
        await world.commit(fact)
        await world.run(4)
        if cancels:
            await world.commit(CancelRequested(kind="cancel_requested", job_id=fact.job_id, tenant="lab"))
        await world.run(26)
        assert world.job(fact.job_id).phase == ("cancelled" if cancels else "succeeded")
        assert not world.pods()
    return calls


@pytest.mark.parametrize("cancels", [False, True], ids=["ends by itself", "is cancelled"])
async def test_a_pod_takes_five_calls_and_its_run_none_besides(cancels: bool) -> None:
    one, three = await calls_of(1, cancels=cancels), await calls_of(3, cancels=cancels)
    assert {call: number for call, number in one.items() if call not in OF_NO_POD} == OF_A_POD
    assert {call: number for call, number in three.items() if call not in OF_NO_POD} == {
        call: 3 * number for call, number in OF_A_POD.items()
    }
    assert [one[call] for call in OF_NO_POD] == [three[call] for call in OF_NO_POD]


async def test_a_run_that_was_seen_bound_and_at_work_at_once_takes_one_message_for_both() -> None:
    """As when the binder is behind, or begins anew."""
    async with World() as world:
        world.api.hangs = True
        fact = admitted("k1", train(2))
        await world.commit(fact)
        await world.run(4)
        world.api.hangs = False
        await world.run(4)
        assert world.job(fact.job_id).phase == "running"
        assert [said.kind for said in world.facts if "node" not in said.kind] == [
            "job_admitted",
            "pods_made",
            "run_started",
        ]
        assert world.kinds()[-4:] == ["allocated", "permitted", "bound", "started"]


async def test_each_of_them_is_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[str] = []
    call = Connections.call

    async def noting(self: Connections, method: str, target: str, *rest: object):
        requests.append(f"{method} {target}")
        return await call(self, method, target, *rest)  # type: ignore[arg-type]

    async with over_http() as world:
        await world.add_node("node-a")
        monkeypatch.setattr(Connections, "call", noting)
        wanted = pod("one")
        wanted["metadata"]["finalizers"] = [FINALIZER]
        uid = (await world.cluster.create_pod(world.ns, wanted))["metadata"]["uid"]
        await world.cluster.bind_pod(world.ns, "one", uid, "node-a", {})
        await world.cluster.create_event(world.ns, {"metadata": {"name": "e", "namespace": world.ns}})
        await world.cluster.delete_pod(world.ns, "one", uid)
        await world.cluster.remove_finalizer(world.ns, "one", uid, FINALIZER)
    at = f"/api/v1/namespaces/{world.ns}"
    assert requests == [
        f"POST {at}/pods",
        f"POST {at}/pods/one/binding",
        f"POST {at}/events",
        f"DELETE {at}/pods/one",
        f"PATCH {at}/pods/one",
    ]
