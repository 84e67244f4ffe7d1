"""Quotas of devices by their class: counted by what jobs claim, by what was drawn once a run has it, and lent."""

from typing import Any

import pytest

from tessera.admission.decide.policy import AdmissionPolicy
from tessera.admission.decide.verdict import find_job_faults
from tessera.client.input.files import config_body
from tessera.client.views.queues import QUOTAS, quota_rows
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.engine.explain.consequences import consequences
from tessera.engine.explain.explanation import explain
from tessera_schemas.cluster.device_claims import DeviceChoice, DeviceClaim, DeviceRequest
from tessera_schemas.cluster.device_layouts import DeviceTaint
from tessera_schemas.commands import ApplyConfig, SubmitJob
from tessera_schemas.config import Queue, Quota
from tessera_schemas.job import Role
from tessera_schemas.reasons import Code
from tessera_schemas.views import QueueView, QuotaUse
from tests.builders import admitted, job_spec
from tests.published_devices import DRIVER, claim, claiming, class_seen, layout_seen, offering, selected, whole_gpus
from tests.rounds import Rounds

EIGHT, FAST, SLOW = whole_gpus(8), "fast", "slow"


def devices(queue: str, parent: str | None = None, more: tuple[Quota, ...] = (), **classes: int) -> Queue:
    """A queue with quotas of devices by class."""
    quotas = tuple(Quota(resource=f"class:{name}", nominal=count) for name, count in classes.items())
    return Queue(name=queue, parent=parent, quotas=(*quotas, *more))


def cluster(*queues: Queue) -> Rounds:
    """One node of eight devices: the first four of class `fast`, the others of class `slow`."""
    world = Rounds(*queues, nodes=[layout_seen(EIGHT), class_seen(), offering("node-0", EIGHT, 8)])
    world.commit(class_seen(FAST, "fast"), selected(EIGHT, 0x0F, "fast"))
    world.commit(class_seen(SLOW, "slow"), selected(EIGHT, 0xF0, "slow"))
    return world


def submit(world: Rounds, key: str, *roles: Role, **spec: Any) -> None:
    world.commit(admitted(key, job_spec(*roles, name=key, **spec)))
    world.settle()


def either(*classes: tuple[str, int]) -> DeviceClaim:
    """A claim of one request with these choices, best first."""
    choices = tuple(DeviceChoice(name=name, device_class=name, count=count) for name, count in classes)
    return DeviceClaim(name="gpu", requests=(DeviceRequest(name="devices", choices=choices),))


def used(world: Rounds, queue: str, name: str) -> int:
    return world.state.quota_book().used(queue, ("", f"class:{name}"))


def test_a_job_waits_for_the_quota_of_the_class_that_it_claims() -> None:
    world = cluster(devices("research", fast=3))
    submit(world, "first", claiming(claim(device_class=FAST, count=2)))
    submit(world, "second", claiming(claim(device_class=FAST, count=2)))
    reason = world.job("second").reason
    assert (reason.code, reason.field) == (Code.WAITING_FOR_QUOTA, "queues.research.class:fast")
    assert reason.numbers == {"wanted": 2, "available": 1, "used": 2, "nominal_quota": 3}
    assert reason.sentence().endswith("(available 1, nominal quota 3, used 2, wanted 2)")
    submit(world, "other", claiming(claim(device_class=SLOW, count=4)))
    assert world.running("first", "other")
    world.finish("first")
    world.settle()
    assert world.running("second")


def test_explain_names_who_holds_the_devices_of_the_class() -> None:
    world = cluster(devices("research", fast=3))
    submit(world, "first", claiming(claim(device_class=FAST, count=2)))
    submit(world, "second", claiming(claim(device_class=FAST, count=2)))
    found = explain(world.state, world.job("second").job_id, world.ts)
    assert found is not None
    told = "\n".join((found.sentence(), *found.notes))
    assert "queues.research.class:fast: its queue's quota is used up" in told
    assert "2 devices of class fast" in told


def test_the_largest_of_several_choices_counts_until_one_is_drawn() -> None:
    world = cluster(devices("research", fast=4, slow=4))
    world.commit(admitted("either", job_spec(claiming(either((FAST, 2), (SLOW, 4))), name="either")))
    assert world.job("either").amount.device_classes == ((FAST, 2), (SLOW, 4))
    world.settle()
    assert world.run("either").amount.device_classes == ((FAST, 2),)
    assert (used(world, "research", FAST), used(world, "research", SLOW)) == (2, 0)
    world.finish("either")
    assert (used(world, "research", FAST), used(world, "research", SLOW)) == (0, 0)


def test_every_device_of_a_class_counts_as_many_as_a_node_has() -> None:
    world = cluster(devices("research", fast=3))
    every = DeviceClaim(
        name="gpu",
        requests=(DeviceRequest(name="all", choices=(DeviceChoice(device_class=FAST, every=True),)),),
    )
    submit(world, "every", claiming(every))
    assert world.job("every").amount.device_classes == ((FAST, 4),)
    assert world.job("every").reason.code is Code.WAITING_FOR_QUOTA


def test_what_is_lent_of_a_class_is_taken_back_for_who_has_the_quota() -> None:
    world = cluster(devices("all"), devices("research", "all", fast=2), devices("lab", "all", fast=2))
    submit(world, "borrower", claiming(claim(device_class=FAST, count=2), replicas=1), queue="lab")
    submit(world, "more", claiming(claim(device_class=FAST, count=2)), queue="lab")
    assert world.running("borrower", "more")
    submit(world, "owner", claiming(claim(device_class=FAST, count=2)), queue="research")
    assert world.running("owner")
    assert used(world, "lab", FAST) == 2


def test_a_snapshot_has_the_devices_of_each_class_that_runs_hold() -> None:
    world = cluster(devices("research", fast=4, slow=4))
    submit(world, "either", claiming(either((SLOW, 3), (FAST, 2)), replicas=1))
    again = load(dump(world.state))
    assert again.runs.get(world.run("either").run_id).amount.device_classes == ((SLOW, 3),)
    assert StateHash().of(again) == StateHash().of(world.state)


@pytest.mark.parametrize(("count", "refused"), [(3, False), (4, True)])
def test_admission_refuses_more_than_a_queue_could_ever_have(count: int, refused: bool) -> None:
    world = cluster(devices("research", **{DRIVER: 3}))
    spec = job_spec(claiming(claim(count=count)), name="job")
    command = SubmitJob(kind="submit_job", v=1, tenant="lab", key="k", spec=spec)
    found = find_job_faults(command, "lab", AdmissionPolicy(1, world.state.tree))
    assert [reason.code for reason in found] == [Code.EXCEEDS_MAX_QUOTA] * refused


def test_a_file_says_quotas_of_classes_beside_gpus() -> None:
    file = {"queues": [{"name": "research", "quotas": {"gpus": 2, "device_classes": {"dra.net": 16}}}]}
    (queue,) = config_body(file, "file")["queues"]
    found = [Quota.model_validate(quota) for quota in queue["quotas"]]
    assert [(each.resource, each.nominal) for each in found] == [("gpu_milli", 2000), ("class:dra.net", 16)]
    with pytest.raises(ValueError, match="as an amount, and not as a part"):
        Quota(resource="class:dra.net", nominal=0, part_percent=50)


def test_the_table_of_quotas_has_devices_as_numbers_and_the_class_as_their_resource() -> None:
    quota = QuotaUse(resource="class:dra.net", nominal=16, used=14, available=2)
    (row,) = quota_rows([QueueView(name="research", pool="default", quotas=(quota,))])
    assert [column.value(row) for column in QUOTAS[1:8]] == ["dra.net", "any", "16", "14", "0", "0", "2"]


def test_a_promise_of_more_devices_of_a_class_than_the_pool_has_is_told() -> None:
    world = cluster(devices("research", fast=4))
    body = world.state.config.body
    more = body.model_copy(update={"queues": (devices("research", fast=5),)})
    order = ApplyConfig(kind="apply_config", v=1, expected_version=world.state.config.version, body=more)
    (promise,) = consequences(world.state, order, world.ts).promises
    assert promise.words().startswith("promises 5 devices of class fast in pool default, which has 4 ")


def test_a_node_shows_its_devices_by_class_how_many_are_taken_and_how_many_are_tainted() -> None:
    world = cluster(devices("research"))
    submit(world, "one", claiming(claim(device_class=FAST, count=3)))
    taint = DeviceTaint(device=f"{DRIVER}/node-0/gpu-7", key="XidError", effect="NoSchedule")
    world.commit(offering("node-0", EIGHT, 8, tainted=(taint,)))
    assert world.state.nodes.get("node-0").device_classes == ((FAST, 4, 3, 0), (DRIVER, 8, 3, 1), (SLOW, 4, 0, 1))
    world.finish("one")
    assert world.state.nodes.get("node-0").device_classes[0] == (FAST, 4, 0, 0)
