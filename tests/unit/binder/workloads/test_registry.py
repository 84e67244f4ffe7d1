"""Every kind of workload is known by one registry, and has the rights that its module names, no more and no fewer."""

from tessera.binder.workloads.references import OwnerRef
from tessera.binder.workloads.registry import GANGS, KINDS, kind_of
from tessera_schemas.cluster.cluster_roles import BINDER, OWNER_READER, Right


def test_the_binders_roles_give_for_each_kind_what_its_module_needs() -> None:
    needed = [rights for kind in KINDS for rights in kind.rights]
    read = {Right(one.group, name, verb) for one in needed for name in one.resources for verb in one.read}
    write = {Right(one.group, name, verb) for one in needed for name in one.resources for verb in one.write}
    write |= {
        Right(one.group, f"{name}/status", verb) for one in needed for name in one.resources for verb in one.status
    }
    ours = {(one.group, name) for one in needed for name in one.resources}

    def of_kinds(given: frozenset[Right]) -> set[Right]:
        return {right for right in given if (right.group, right.resource.removesuffix("/status")) in ours}

    assert of_kinds(OWNER_READER.rights()) == read
    assert of_kinds(BINDER.rights()) == write


def test_every_mark_of_a_kind_has_its_place_in_the_order_of_marks() -> None:
    assert {mark for kind in KINDS for mark in kind.marks} == set(GANGS)
    assert len(GANGS) == len(set(GANGS))


def test_an_object_is_of_one_kind_at_most() -> None:
    for kind in KINDS:
        for name in kind.kinds:
            ref = OwnerRef(f"{kind.api_group}/v1", name, "lab", "train")
            assert [each for each in KINDS if each.owns(ref)] == [kind]
    assert kind_of(OwnerRef("apps/v1", "ReplicaSet", "lab", "train")) is None
