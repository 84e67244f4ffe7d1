"""Before an uninstall: the binder is stopped, then no pod of the shard has our finalizer, whatever happens between."""

from typing import Any

import pytest

from tessera.client.cluster.uninstalling import release_pods, stop_deployment
from tessera.client.outcomes import Exit, Failure
from tessera.kernel.ports import ApiError
from tessera_schemas.cluster.labels import FINALIZER, pods_of_shard
from tests.virtual_time import ImpatientClock

Json = dict[str, Any]


def pod(name: str, *finalizers: str) -> Json:
    return {"metadata": {"name": name, "namespace": "demo", "uid": f"u-{name}", "finalizers": list(finalizers)}}


class Api:
    """Pods of shard `main`; `answers` are what removing a finalizer fails with, one after the other."""

    def __init__(self, *pods: Json, answers: tuple[int, ...] = (), binders: int = 0) -> None:
        self.pods = {one["metadata"]["name"]: one for one in pods}
        self.answers, self.binders, self.scaled = list(answers), binders, False

    async def list(self, kind: str, label_selector: str = "", field_selector: str = "") -> tuple[list[Json], str]:
        if label_selector == "app=binder":
            self.binders -= self.scaled and self.binders > 0
            return [{"metadata": {"namespace": "system"}}] * self.binders, "1"
        assert label_selector == pods_of_shard("main")
        return list(self.pods.values()), "1"

    async def get_object(self, api_version: str, kind: str, namespace: str, name: str) -> Json:
        if name == "gone":
            raise ApiError(404, "NotFound", name)
        return {"spec": {"selector": {"matchLabels": {"app": "binder"}}}}

    async def patch_object(self, api_version: str, kind: str, namespace: str, name: str, patch: Json) -> None:
        assert patch == {"spec": {"replicas": 0}}
        self.scaled = True

    async def remove_finalizer(self, namespace: str, name: str, uid: str, finalizer: str) -> None:
        if self.answers:
            status = self.answers.pop(0)
            if status == 404:
                del self.pods[name]
            raise ApiError(status, "", "")
        self.pods[name]["metadata"]["finalizers"].remove(finalizer)


async def test_our_finalizer_goes_from_every_pod_and_those_of_others_stay() -> None:
    api = Api(pod("a", FINALIZER), pod("b", "other/one", FINALIZER), pod("c", "other/one"))
    assert await release_pods(api, ["main"]) == 2
    assert [one["metadata"]["finalizers"] for one in api.pods.values()] == [[], ["other/one"], ["other/one"]]


async def test_a_pod_that_goes_or_changes_meanwhile_is_looked_at_again() -> None:
    api = Api(pod("a", FINALIZER), pod("b", FINALIZER), answers=(404, 409))
    assert await release_pods(api, ["main"]) == 1
    assert api.pods["b"]["metadata"]["finalizers"] == []


async def test_pods_that_change_for_ever_are_no_success() -> None:
    with pytest.raises(Failure, match="still have the finalizer") as failed:
        await release_pods(Api(pod("a", FINALIZER), answers=(409,) * 9), ["main"])
    assert failed.value.code is Exit.CONFLICT


async def test_the_binder_counts_as_stopped_without_pods_and_without_a_deployment() -> None:
    api, clock = Api(binders=3), ImpatientClock()
    await stop_deployment(api, clock, "system", "tessera-binder", 60)
    assert (api.scaled, api.binders) == (True, 0)
    await stop_deployment(Api(), clock, "system", "gone", 60)
