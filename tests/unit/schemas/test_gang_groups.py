"""Groups of pods within each other: what the contract takes, and each fault by its field."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from tessera_schemas.cluster.gang_groups import COPIES_MAX, GROWN_MAX, find_growing
from tessera_schemas.job import JobSpec
from tests.builders import job_spec, role

RACK = {"level": "rack"}
ALL = {"name": "all", "topology": {"level": "zone"}}
TEAM = {"name": "team", "pods": {"head": 2, "worker": 4}, "topology": RACK}
ROLES = (role("head", 4), role("worker", 8))


def made(groups: list[dict[str, Any]], *roles: Any) -> JobSpec:
    plain = job_spec(*(roles or ROLES)).model_dump(mode="json")
    return JobSpec.model_validate_json(json.dumps(plain | {"groups": groups}))


def test_groups_divide_the_pods_of_roles() -> None:
    pair = {"name": "pair", "within": "team", "pods": {"worker": 2}}
    spec = made([ALL, {**TEAM, "within": "all"}, pair])
    assert [group.name for group in spec.groups] == ["all", "team", "pair"]


def test_a_job_without_groups_is_written_as_before() -> None:
    assert "groups" not in job_spec().model_dump(mode="json")


FAULTS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "a name twice": ([TEAM, TEAM], "groups: two groups have the same name"),
    "a parent that is not there": ([{**TEAM, "within": "row"}], r"groups\[0\].within: there is no group row before"),
    "a parent that comes later": ([{**TEAM, "within": "all"}, ALL], r"groups\[0\].within: there is no group all"),
    "a role that is not there": ([{**TEAM, "pods": {"cook": 1}}], r"groups\[0\].pods: there is no role cook"),
    "no whole copies": ([{**TEAM, "pods": {"worker": 3}}], r"8 pods of worker make no whole groups of 3"),
    "copies that differ": ([{**TEAM, "pods": {"head": 1, "worker": 4}}], r"different numbers of copies \(2, 4\)"),
    "no whole copies within a copy": (
        [TEAM, {"name": "trio", "within": "team", "pods": {"worker": 3}}],
        r"groups\[1\].pods: 4 pods of worker make no whole",
    ),
    "a role that the copy does not have": (
        [{"name": "heads", "pods": {"head": 2}}, {"name": "pair", "within": "heads", "pods": {"worker": 2}}],
        r"groups\[1\].pods: worker is not in heads",
    ),
    "a role in two groups": (
        [TEAM, {"name": "pair", "pods": {"worker": 2}}],
        "worker is in groups that are not within",
    ),
    "all pods twice": ([ALL, {"name": "every"}], r"groups\[1\].pods: left out for the first group alone"),
    "a group beside all": ([ALL, TEAM], r"groups\[1\].within: the first group holds all pods; name it"),
    "a domain in common": ([{**TEAM, "topology": {**RACK, "group": "g"}}], r"groups\[0\].topology.group: a group has"),
}


@pytest.mark.parametrize(("groups", "words"), FAULTS.values(), ids=FAULTS)
def test_each_fault_is_refused_by_its_field(groups: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        made(groups)


TIED: dict[str, Any] = {
    "its own topology": role("worker", 8, topology=RACK),
    "its own spread": role("worker", 8, spread="zone"),
    "another role's nodes": role("worker", 4, same_node_as="head"),
}


@pytest.mark.parametrize("tied", TIED.values(), ids=TIED)
def test_a_role_that_says_itself_where_its_pods_are_is_in_no_group(tied: Any) -> None:
    with pytest.raises(ValidationError, match=r"groups\[0\]: pods of worker are placed by its own topology"):
        made([{"name": "some", "pods": {"worker": 4}}], role("head", 4), tied)


def elastic(name: str, least: int, most: int) -> Any:
    return role(name, least, max_replicas=most)


def test_a_group_with_elastic_roles_grows_by_whole_copies() -> None:
    spec = made([ALL, {**TEAM, "within": "all"}], elastic("head", 2, 6), elastic("worker", 4, 12))
    growing = find_growing(spec.groups, spec.roles)
    assert growing is not None
    assert growing.name == "team"
    assert find_growing(spec.groups, ROLES) is None


UNEVEN: dict[str, tuple[list[dict[str, Any]], tuple[Any, ...], str]] = {
    "no whole copies at most": (
        [TEAM],
        (elastic("head", 2, 4), elastic("worker", 4, 10)),
        r"groups\[0\].pods: 10 pods of worker make no whole groups of 4",
    ),
    "numbers at most that differ": (
        [TEAM],
        (elastic("head", 2, 4), elastic("worker", 4, 12)),
        r"groups\[0\].pods: the roles make different numbers of copies \(2, 3\)",
    ),
    "a role that stays": ([TEAM], (role("head", 2), elastic("worker", 4, 8)), r"different numbers of copies \(1, 2\)"),
    "an elastic role in the group of all alone": (
        [ALL],
        (elastic("worker", 4, 8),),
        "worker is elastic; a job grows by",
    ),
    "two groups that grow": (
        [{"name": "heads", "pods": {"head": 2}}, {"name": "pair", "pods": {"worker": 2}}],
        (elastic("head", 2, 4), elastic("worker", 2, 4)),
        "worker is elastic; a job grows by copies of one group",
    ),
    "all pods start again": (
        [{**ALL, "restart": {}}, {**TEAM, "within": "all"}],
        (elastic("head", 2, 4), elastic("worker", 4, 8)),
        "groups: all has all pods and grows",
    ),
    "too many pods at once": (
        [{"name": "large", "pods": {"worker": GROWN_MAX + 1}}],
        (elastic("worker", GROWN_MAX + 1, 2 * GROWN_MAX + 2),),
        f"a copy of large has more than {GROWN_MAX} pods",
    ),
}


@pytest.mark.parametrize(("groups", "roles", "words"), UNEVEN.values(), ids=UNEVEN)
def test_a_growth_that_is_not_of_whole_copies_is_refused(groups: Any, roles: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        made(groups, *roles)


def test_groups_are_bounded_in_depth_and_copies() -> None:
    deep = [{"name": "g0", "pods": {"worker": 8}}]
    deep += [{"name": f"g{n}", "within": f"g{n - 1}", "pods": {"worker": 8}} for n in range(1, 5)]
    with pytest.raises(ValidationError, match="g4 is within more than 3 others"):
        made(deep)
    with pytest.raises(ValidationError, match=f"groups: more than {COPIES_MAX} copies"):
        made([{"name": "one", "pods": {"worker": 1}}], role("worker", COPIES_MAX + 1))
