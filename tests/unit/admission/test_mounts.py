"""Paths that the configuration maps to claims: what jobs may mount, and what they get."""

from typing import Any

import pytest

from tessera_schemas.config import ConfigBody
from tessera_schemas.facts import JobAdmitted, JobRefused
from tessera_schemas.job import JobSpec
from tessera_schemas.work.pod_template import Mount
from tests.builders import config_body
from tests.unit.admission.admission_world import SPEC, World, changed

MOUNTS = (
    Mount(path="/data", claim="data"),
    Mount(path="/data/sets", claim="sets", read_only=True),
    Mount(path="/home", claim="homes", tenants=("other",)),
)


def asks(path: str, **more: Any) -> dict[str, Any]:
    volume = {"kind": "mapped", "path": path, "mount_path": "/mnt", **more}
    return changed("spec.roles.0.template", SPEC["roles"][0]["template"] | {"volumes": [volume]})


async def judged(*mounts: Mount, path: str, **more: Any) -> JobAdmitted | JobRefused:
    world = await World.with_policy(config_body(mounts=mounts))
    await world.submits(asks(path, **more))
    (fact,) = world.facts
    assert isinstance(fact, JobAdmitted | JobRefused)
    return fact


@pytest.mark.parametrize(
    ("path", "claim", "sub_path", "read_only"),
    [
        ("/data", "data", "", False),
        ("/data/", "data", "", False),
        ("/data/a/b", "data", "a/b", False),
        ("/data/sets", "sets", "", True),
        ("/data/sets/imagenet", "sets", "imagenet", True),
        ("/data/settings", "data", "settings", False),
        ("/data/a/../b", "data", "b", False),
    ],
)
async def test_a_path_at_or_below_a_mount_is_that_folder_of_its_claim(
    path: str, claim: str, sub_path: str, read_only: bool
) -> None:
    fact = await judged(*MOUNTS, path=path)
    assert isinstance(fact, JobAdmitted)
    (volume,) = fact.spec.roles[0].template.volumes
    assert (volume.kind, volume.name, volume.sub_path) == ("claim", claim, sub_path)
    assert (volume.mount_path, volume.read_only, volume.path) == ("/mnt", read_only, "")
    assert fact.asked == JobSpec.model_validate(asks(path)["spec"]).digest()


async def test_a_job_may_ask_for_less_than_it_may() -> None:
    fact = await judged(*MOUNTS, path="/data", read_only=True)
    assert isinstance(fact, JobAdmitted)
    assert fact.spec.roles[0].template.volumes[0].read_only


@pytest.mark.parametrize("path", ["/", "/etc", "/database", "/home/me", "/data/../etc/passwd", "/data/.."])
async def test_any_other_path_is_refused_with_those_that_are_mapped(path: str) -> None:
    fact = await judged(*MOUNTS, path=path)
    assert isinstance(fact, JobRefused)
    (reason,) = fact.reasons
    assert (reason.code, reason.field) == ("InvalidField", "roles[0].template.volumes[0].path")
    assert reason.detail == f"no mount of the configuration holds {path}; mapped are: /data, /data/sets"


async def test_nothing_is_mapped_unless_the_configuration_says_so() -> None:
    fact = await judged(path="/data")
    assert isinstance(fact, JobRefused)
    assert fact.reasons[0].detail.endswith("mapped are: none")


async def test_the_answer_says_what_is_mounted() -> None:
    world = await World.with_policy(config_body(mounts=MOUNTS))
    await world.batch(("lab", asks("/data/sets/a")), headers={"Tessera-Reply": "_INBOX.lab.x"})
    notes = [note for _, answer in world.answers for note in answer.notes]
    assert notes == ["/mnt: a of claim sets, read-only, by mounts of the configuration"]


EVERYWHERE = Mount(path="/shared/home", claim="homes", in_every_pod=True)
SHARED = Mount(path="/shared", claim="shared", in_every_pod=True, read_only=True)


@pytest.mark.parametrize(
    ("volumes", "claims"),
    [
        ([], [("/shared", "shared", True), ("/shared/home", "homes", False)]),
        (
            [{"kind": "empty", "mount_path": "/shared/home/"}],
            [("/shared/home/", "", False), ("/shared", "shared", True)],
        ),
    ],
    ids=["a pod without volumes", "a pod with something of its own there"],
)
async def test_what_every_pod_has_is_mounted_at_its_path(volumes: list[dict[str, Any]], claims: list[Any]) -> None:
    of_others = Mount(path="/other", claim="other", in_every_pod=True, tenants=("other",))
    world = await World.with_policy(config_body(mounts=(*MOUNTS, EVERYWHERE, SHARED, of_others)))
    await world.submits(changed("spec.roles.0.template", SPEC["roles"][0]["template"] | {"volumes": volumes}))
    (fact,) = world.facts
    assert isinstance(fact, JobAdmitted)
    found = fact.spec.roles[0].template.volumes
    assert [(each.mount_path, each.name, each.read_only) for each in found] == claims
    assert JobAdmitted.model_validate_json(fact.to_bytes()) == fact


@pytest.mark.parametrize(("count", "refused"), [(30, False), (31, True)])
async def test_a_pod_that_has_no_room_for_them_is_refused_by_name(count: int, refused: bool) -> None:
    world = await World.with_policy(config_body(mounts=(EVERYWHERE, SHARED)))
    own = [{"kind": "empty", "mount_path": f"/own/{number}"} for number in range(count)]
    await world.submits(changed("spec.roles.0.template", SPEC["roles"][0]["template"] | {"volumes": own}))
    (fact,) = world.facts
    assert isinstance(fact, JobRefused) is refused
    if isinstance(fact, JobRefused):
        (reason,) = fact.reasons
        assert reason.field == "roles[0].template.volumes"
        assert "mounts /shared, /shared/home in every pod" in reason.detail


@pytest.mark.parametrize(
    ("mounts", "why"),
    [
        ([{"path": "/", "claim": "a"}], "a directory below /"),
        ([{"path": "/a/", "claim": "a"}], "without a slash at its end"),
        ([{"path": "/a/../b", "claim": "a"}], "without .."),
        ([{"path": "/a", "claim": "a"}, {"path": "/a", "claim": "b"}], "mounts./a: is there twice"),
        ([{"path": "/a", "claim": "a", "tenants": ["nobody"]}], "mounts./a.tenants: no tenant nobody"),
    ],
)
def test_a_mount_that_cannot_be_meant_is_refused(mounts: list[dict[str, Any]], why: str) -> None:
    body = config_body().model_dump(mode="json") | {"mounts": mounts}
    with pytest.raises(ValueError, match=why.replace("(", "[(]")):
        ConfigBody.model_validate(body)


@pytest.mark.parametrize(
    "volume",
    [
        {"kind": "mapped", "mount_path": "/mnt"},
        {"kind": "mapped", "mount_path": "/mnt", "path": "/data", "name": "data"},
        {"kind": "claim", "mount_path": "/mnt", "name": "data", "path": "/data"},
        {"kind": "empty", "mount_path": "/mnt", "sub_path": "a"},
        {"kind": "claim", "mount_path": "/mnt", "name": "data", "sub_path": "../a"},
        {"kind": "claim", "mount_path": "/mnt", "name": "data", "sub_path": "/a"},
    ],
)
def test_a_volume_that_contradicts_itself_is_refused(volume: dict[str, Any]) -> None:
    spec = changed("spec.roles.0.template", SPEC["roles"][0]["template"] | {"volumes": [volume]})["spec"]
    with pytest.raises(ValueError, match=r"volumes\.0"):
        JobSpec.model_validate(spec)
