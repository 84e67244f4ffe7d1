"""
Facts of the cases by which Kubernetes 1.36.2 tests its own allocator, as data: devices, claims, and what is allocated.

The names are those of its table (`structured/internal/allocatortesting`). `LEFT_OUT` has the cases that say nothing of
claims on the complete pools of one node, with the reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tessera.domain.devices.claims import ChoiceNeed, ClaimNeed
from tessera_schemas.cluster.device_layouts import DeviceCapacity, OfferedDevice
from tests.unit.engine.device_builders import choice, claim, device, match

Part = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Case:
    """
    `expected` has, for each claim and request or request/choice, the devices by place, or their number where several
    do as well; None where nothing is allocated. `parts` are what shares take of c0, where the case says so.
    """

    devices: Sequence[OfferedDevice]
    claims: Sequence[ClaimNeed]
    expected: Mapping[str, Sequence[int] | int] | None
    counters: tuple[int, ...] = ()
    selected: Mapping[str, Sequence[int]] = field(default_factory=dict)
    taken: Sequence[tuple[int, Part]] = ()
    tainted: Sequence[tuple[int, str, str, str]] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    incomplete: bool = False
    parts: Mapping[str, int] = field(default_factory=dict)


def plain(count: int) -> list[OfferedDevice]:
    return [device(f"d{number}") for number in range(count)]


def used(*amounts: Sequence[int]) -> list[OfferedDevice]:
    """Devices that take so much of each counter."""
    return [device(f"d{at}", tuple(enumerate(each))) for at, each in enumerate(amounts)]


def told(name: str, *values: int) -> list[OfferedDevice]:
    return [device(f"d{at}", **{name: value}) for at, value in enumerate(values)]


def shares(*capacities: DeviceCapacity | None, **same: int) -> list[OfferedDevice]:
    found = [{} if capacity is None else {"c0": capacity} for capacity in capacities]
    return [device(f"d{at}", capacity=capacity, shared=True, **same) for at, capacity in enumerate(found)]


def amount(value: int) -> DeviceCapacity:
    return DeviceCapacity(value=value)


def ranged(value: int) -> DeviceCapacity:
    return DeviceCapacity(value=value, default=2, least=2, step=2, most=4)


def valid(value: int, *values: int) -> DeviceCapacity:
    return DeviceCapacity(value=value, default=values[0], valid=values)


def part(count: int, device_class: str = "any", name: str = "", devices: int = 1) -> ChoiceNeed:
    return choice(device_class, devices, name, capacity=(("c0", count),))


ALL = choice(count=0)
ONE = choice()
TAINT, OTHER_TAINT = ("key", "one", "NoSchedule"), ("key", "two", "NoExecute")
BEARS, BEARS_OTHER = ("key", "", "NoSchedule", True), ("key", "two", "NoExecute", False)
BY_SIZE = {"ge1": [0, 1], "ge2": [1]}
SEVERAL = [device("d0", bool=0, version=0, numa=0, text=0), device("d1", bool=0, version=0, numa=0, text=0)]
PARTITIONS = used([4], [6], [4])
LISTED = [choice("ge6", name="s0"), choice("ge4", name="s1")]
EIGHTS = {"ge8": [0], "ge4": [0, 1]}
KINDS = {"x": [0], "y": [1, 2]}

CASES: dict[str, Case] = {
    "empty": Case([], [], {}),
    "no-claims-to-allocate": Case(plain(1), [], {}),
    "simple": Case(plain(1), [claim(ONE)], {"c:r0": [0]}),
    "no-slices": Case([], [claim(ONE)], None),
    "not-enough-suitable-devices": Case(plain(1), [claim(ONE, ONE)], None),
    "small-and-large": Case(plain(2), [claim(choice("ge1"), choice("ge2"))], {"c:r0": [0], "c:r1": [1]}, (), BY_SIZE),
    "small-and-large-backtrack-requests": Case(
        plain(2), [claim(choice("ge1"), choice("ge2"))], {"c:r0": [1], "c:r1": [0]}, (), {"ge1": [0, 1], "ge2": [0]}
    ),
    "small-and-large-backtrack-claims": Case(
        plain(2),
        [claim(choice("ge1")), claim(choice("ge2"), name="e")],
        {"c:r0": [1], "e:r0": [0]},
        (),
        {"ge1": [0, 1], "ge2": [0]},
    ),
    "devices-split-across-different-slices": Case(plain(2), [claim(choice(count=2))], {"c:r0": [0, 1]}),
    "several-different-drivers": Case(
        plain(2), [claim(choice("a"), choice("b"))], {"c:r0": [0], "c:r1": [1]}, (), {"a": [0], "b": [1]}
    ),
    "already-allocated-devices": Case(plain(2), [claim(ONE)], None, taken=[(0, ()), (1, ())]),
    "unknown-class": Case(plain(1), [claim(choice("none"))], None),
    "all-devices-single": Case(plain(1), [claim(ALL)], {"c:r0": [0]}),
    "all-devices-many": Case(plain(2), [claim(ALL)], {"c:r0": [0, 1]}),
    "all-devices-with-consumed-counters": Case(used([4]), [claim(ALL)], {"c:r0": [0]}, (8,)),
    "all-devices-of-the-incomplete-pool": Case(plain(1), [claim(ALL)], None, incomplete=True),
    "all-devices-plus-another": Case(
        plain(2),
        [claim(choice("a", 0)), claim(choice("b"), name="e")],
        {"c:r0": [0], "e:r0": [1]},
        (),
        {"a": [0], "b": [1]},
    ),
    "all-devices-many-plus-another-reversed": Case(
        plain(3),
        [claim(choice("b")), claim(choice("a", 0), name="e")],
        {"c:r0": [2], "e:r0": [0, 1]},
        (),
        {"a": [0, 1], "b": [2]},
    ),
    "all-devices-no-solution": Case(plain(1), [claim(ONE), claim(ALL, name="e")], None),
    "all-devices-no-solution-reversed": Case(plain(1), [claim(ALL), claim(ONE, name="e")], None),
    "all-devices-slice-without-devices": Case(plain(1), [claim(choice("a", 0))], None, (), {"a": []}),
    "all-devices-some-allocated": Case(plain(2), [claim(ALL)], None, taken=[(0, ())]),
    "all-devices-some-allocated-admin-access": Case(
        plain(2), [claim(choice(count=0, admin=True))], {"c:r0": [0, 1]}, taken=[(0, ())]
    ),
    "all-devices-some-allocating-admin-access": Case(
        plain(2), [claim(choice(admin=True), choice(count=0, admin=True))], None
    ),
    "count-devices-some-allocated-admin-access": Case(
        plain(2), [claim(choice(count=2, admin=True))], {"c:r0": [0, 1]}, taken=[(0, ())]
    ),
    "separate-claims-share-device-admin-access": Case(
        plain(2), [claim(choice(admin=True)), claim(choice(admin=True), name="e")], {"c:r0": [0], "e:r0": [0]}
    ),
    "admin-access-claims-device-allocating-for-non-admin-access": Case(
        plain(2), [claim(ONE), claim(choice(admin=True), name="e")], {"c:r0": [0], "e:r0": [0]}
    ),
    "all-devices-slice-without-devices-prioritized-list": Case(
        plain(1),
        [claim([choice("a", 0, "s0"), choice("b", name="s1")])],
        {"c:r0/s1": [0]},
        (),
        {"a": [], "b": [0]},
    ),
    "all-devices-some-allocated-prioritized-list": Case(
        plain(3),
        [claim([choice("a", 0, "s0"), choice("b", name="s1")])],
        {"c:r0/s1": [2]},
        (),
        {"a": [0, 1], "b": [2]},
        taken=[(0, ())],
    ),
    "with-constraint": Case(
        SEVERAL,
        [claim(ONE, ONE, constraints=sum((match(name) for name in ("numa", "version", "text", "bool")), ()))],
        {"c:r0": 1, "c:r1": 1},
    ),
    "with-constraint-non-existent-attribute": Case(plain(1), [claim(ONE, constraints=match("none"))], None),
    "with-constraint-not-matching-int-attribute": Case(
        told("numa", 1, 2), [claim(choice(count=2), constraints=match("numa"))], None
    ),
    "with-constraint-not-matching-int-attribute-all-devices": Case(
        told("numa", 1, 2), [claim(ALL, constraints=match("numa"))], None
    ),
    "with-constraint-for-request": Case(
        told("version", 1, 2), [claim(ONE, ONE, constraints=match("version", "r0"))], {"c:r0": 1, "c:r1": 1}
    ),
    "with-constraint-for-request-retry": Case(
        [device("d0", version=1, text=1), device("d1", version=2, text=2), device("d2", version=3, text=2)],
        [claim(ONE, ONE, constraints=(*match("version", "r0"), *match("text")))],
        {"c:r0": 1, "c:r1": 1},
    ),
    "invalid-CEL-one-device": Case(plain(1), [claim(choice("bad"))], None, errors={"bad": "no such key"}),
    "invalid-CEL-all-devices": Case(plain(1), [claim(choice("bad", 0))], None, errors={"bad": "no such key"}),
    "too-many-devices-single-request": Case(plain(40), [claim(choice(count=33))], None),
    "too-many-devices-total": Case(plain(33), [claim(choice(count=32), ONE)], None),
    "max-number-devices": Case(plain(32), [claim(choice(count=32))], {"c:r0": range(32)}),
    "prioritized-list-first-unavailable": Case(
        plain(1), [claim([choice("b", name="s0"), choice(name="s1")])], {"c:r0/s1": [0]}, (), {"b": []}
    ),
    "prioritized-list-non-available": Case(
        plain(2), [claim([choice("b", 2, "s0"), choice("a", 2, "s1")])], None, (), {"a": [0], "b": [1]}
    ),
    "prioritized-list-subrequests-with-expressions": Case(
        plain(3),
        [claim(choice("ge1"), [choice("ge4", name="s0"), choice("ge2", 2, "s1")])],
        {"c:r0": [2], "c:r1/s1": [0, 1]},
        (),
        {"ge1": [0, 1, 2], "ge2": [0, 1], "ge4": []},
    ),
    "prioritized-list-subrequests-with-constraints-ref-parent-request": Case(
        told("version", 1, 2, 1),
        [
            claim(
                choice("ge8"),
                [choice("ge2", name="s0"), choice("ge1", name="s1")],
                constraints=match("version", "r0", "r1"),
            )
        ],
        {"c:r0": [0], "c:r1/s1": [2]},
        (),
        {"ge8": [0], "ge2": [0, 1], "ge1": [0, 1, 2]},
    ),
    "prioritized-list-subrequests-with-constraints-ref-sub-request": Case(
        told("version", 1, 2),
        [
            claim(
                choice("ge8"),
                [choice("ge2", name="s0"), choice("ge1", name="s1")],
                constraints=match("version", "r0", "r1/s0"),
            )
        ],
        {"c:r0": [0], "c:r1/s1": [1]},
        (),
        {"ge8": [0], "ge2": [0, 1], "ge1": [0, 1]},
    ),
    "prioritized-list-subrequests-with-allocation-mode-all": Case(
        plain(2), [claim([choice(count=0, name="s0"), choice(name="s1")])], {"c:r0/s1": [1]}, taken=[(0, ())]
    ),
    "prioritized-list-allocation-mode-all-multiple-requests": Case(
        plain(2), [claim(ONE, [choice(count=0, name="s0"), choice(name="s1")])], {"c:r0": 1, "c:r1/s1": 1}
    ),
    "prioritized-list-multi-request": Case(
        plain(2),
        [claim(choice("ge8"), [choice("ge8", name="s0"), choice("ge4", name="s1")])],
        {"c:r0": [0], "c:r1/s1": [1]},
        (),
        EIGHTS,
    ),
    "prioritized-list-with-backtracking": Case(
        plain(2),
        [claim([choice("ge8", name="s0"), choice("ge4", name="s1")], choice("ge8"))],
        {"c:r0/s1": [1], "c:r1": [0]},
        (),
        EIGHTS,
    ),
    "prioritized-list-too-many-in-first-subrequest": Case(
        plain(1), [claim([choice("b", 500, "s0"), choice(name="s1")])], {"c:r0/s1": [0]}, (), {"b": []}
    ),
    "prioritized-list-allocation-mode-all-with-selectors": Case(
        plain(1),
        [claim([choice("v6", 0, "s0"), choice("v5", 0, "s1")])],
        {"c:r0/s1": [0]},
        (),
        {"v6": [], "v5": [0]},
    ),
    "prioritized-list-max-allocation-limit-request": Case(
        plain(64),
        [claim(*[[choice(count=32, name="s0"), choice(count=16, name="s1")]] * 2)],
        {"c:r0/s1": 16, "c:r1/s1": 16},
    ),
    "prioritized-list-max-allocation-allocation-mode-all": Case(
        plain(33),
        [claim([choice("a", 0, "s0"), choice("a", 2, "s1")], choice("b", 2))],
        {"c:r0/s1": 2, "c:r1": [31, 32]},
        (),
        {"a": range(31), "b": [31, 32]},
    ),
    "partitionable-devices-single-device": Case(used([4]), [claim(ONE)], {"c:r0": [0]}, (8,)),
    "partitionable-devices-prioritized-list": Case(
        PARTITIONS, [claim(ONE, LISTED)], {"c:r0": 1, "c:r1/s1": 1}, (8,), {"ge6": [1], "ge4": [0, 1, 2]}
    ),
    "partitionable-devices-multiple-devices": Case(PARTITIONS, [claim(ONE, ONE)], {"c:r0": 1, "c:r1": 1}, (8,)),
    "partitionable-devices-multiple-capacity-pools": Case(
        used([4, 4], [6, 6], [4, 4]),
        [claim(ONE, LISTED)],
        {"c:r0": 1, "c:r1/s1": 1},
        (18, 8),
        {"ge6": [1], "ge4": [0, 1, 2]},
    ),
    "partitionable-devices-multiple-counters": Case(
        used([6, 4, 4, 2], [4, 6, 6, 6], [4, 4, 4, 4]), [claim(ONE, ONE)], {"c:r0": 1, "c:r1": 1}, (8, 18, 12, 18)
    ),
    "partitionable-devices-multiple-pools": Case(
        used([6, 4], [4, 6], [4, 4], [0, 0, 6, 4], [0, 0, 1, 7], [0, 0, 1, 7]),
        [claim(ONE, ONE)],
        {"c:r0": 1, "c:r1": 1},
        (8, 18, 8, 18),
        taken=[(1, ()), (2, ()), (3, ())],
    ),
    "partitionable-devices-unused-counters-in-counter-set": Case(
        used([5], [4], [4]), [claim(choice(count=2))], {"c:r0": [1, 2]}, (8, 1)
    ),
    "partitionable-devices-no-capacity-available": Case(used([4], [16]), [claim(ONE)], None, (18,), taken=[(1, ())]),
    "partitionable-devices-overallocated-capacity-pool": Case(
        used([4], [20]), [claim(ONE)], None, (18,), taken=[(1, ())]
    ),
    "partitionable-devices-with-attribute-selector": Case(
        used([1, 0, 0, 10], [0, 1, 0, 10], [0, 0, 1, 10]),
        [claim(choice(count=2), choice("special"))],
        {"c:r0": [1, 2], "c:r1": [0]},
        (1, 1, 1, 30),
        {"special": [0]},
    ),
    "tainted-two-devices": Case(plain(2), [claim(ONE)], None, tainted=[(0, *TAINT), (1, *OTHER_TAINT)]),
    "tainted-one-device-two-taints": Case(plain(1), [claim(ONE)], None, tainted=[(0, *TAINT), (0, *OTHER_TAINT)]),
    "tainted-two-devices-tolerated": Case(
        plain(2),
        [claim(choice(tolerations=(BEARS_OTHER,)))],
        {"c:r0": [1]},
        tainted=[(0, *TAINT), (1, *OTHER_TAINT)],
    ),
    "tainted-two-devices-prioritized-list-tolerated": Case(
        plain(2),
        [claim([choice(name="s0"), choice(name="s1", tolerations=(BEARS_OTHER,))])],
        {"c:r0/s1": [1]},
        tainted=[(0, *TAINT), (1, *OTHER_TAINT)],
    ),
    "tainted-one-device-two-taints-both-tolerated": Case(
        plain(1),
        [claim(choice(tolerations=(BEARS, BEARS_OTHER)))],
        {"c:r0": [0]},
        tainted=[(0, *TAINT), (0, *OTHER_TAINT)],
    ),
    "tainted-prioritized-list": Case(
        plain(1), [claim([choice("b", name="s0"), choice(name="s1")])], None, (), {"b": []}, tainted=[(0, *TAINT)]
    ),
    "tainted-admin-access": Case(plain(1), [claim(choice(admin=True))], None, taken=[(0, ())], tainted=[(0, *TAINT)]),
    "tainted-all-devices-single": Case(plain(1), [claim(ALL)], None, tainted=[(0, *TAINT)]),
    "consumable-capacity-multi-allocatable-device-with-missing-capacity-request": Case(
        shares(amount(1)), [claim(choice(capacity=(("c1", 1),)))], None
    ),
    "consumable-capacity-multi-allocatable-device-allocation-mode-all-with-missing-capacity-request": Case(
        shares(amount(1)), [claim(choice(count=0, capacity=(("c1", 1),)))], None
    ),
    "consumable-capacity-multi-allocatable-device-without-capacity-without-capacity-request": Case(
        shares(None), [claim(ONE), claim(ONE, name="e")], {"c:r0": [0], "e:r0": [0]}
    ),
    "consumable-capacity-multi-allocatable-device-without-policy-without-capacity-request": Case(
        shares(amount(1), amount(1)), [claim(ONE), claim(ONE, name="e")], {"c:r0": [0], "e:r0": [1]}
    ),
    "consumable-capacity-multi-allocatable-device-without-policy-without-capacity-request-block": Case(
        shares(amount(2)), [claim(ONE), claim(ONE, name="e")], None
    ),
    "consumable-capacity-multi-allocatable-device-without-policy-with-capacity-request": Case(
        shares(amount(2)),
        [claim(part(1)), claim(part(1), name="e")],
        {"c:r0": [0], "e:r0": [0]},
        parts={"c:r0": 1, "e:r0": 1},
    ),
    "consumable-capacity-multi-allocatable-device-with-policy-without-capacity-request": Case(
        shares(ranged(4)),
        [claim(ONE), claim(ONE, name="e")],
        {"c:r0": [0], "e:r0": [0]},
        parts={"c:r0": 2, "e:r0": 2},
    ),
    "consumable-capacity-multi-allocatable-device-with-zero-request-policy": Case(
        shares(valid(1, 0)), [claim(ONE), claim(ONE, name="e")], {"c:r0": [0], "e:r0": [0]}, parts={"c:r0": 0}
    ),
    "consumable-capacity-multi-allocatable-device-violates-zero-request-policy": Case(
        shares(valid(1, 0)), [claim(part(1))], None
    ),
    "consumable-capacity-multi-allocatable-device-with-range-policy-with-capacity-request": Case(
        shares(ranged(4)),
        [claim(part(1)), claim(part(1), name="e")],
        {"c:r0": [0], "e:r0": [0]},
        parts={"c:r0": 2, "e:r0": 2},
    ),
    "consumable-capacity-multi-allocatable-device-with-range-policy-step": Case(
        shares(ranged(4)), [claim(part(3))], {"c:r0": [0]}, parts={"c:r0": 4}
    ),
    "consumable-capacity-multi-allocatable-device-with-valid-values-policy": Case(
        shares(valid(4, 1, 2)), [claim(part(2))], {"c:r0": [0]}, parts={"c:r0": 2}
    ),
    "consumable-capacity-multi-allocatable-device-with-valid-values-policy-round-up": Case(
        shares(valid(3, 1, 3)), [claim(part(2))], {"c:r0": [0]}, parts={"c:r0": 3}
    ),
    "consumable-capacity-multi-allocatable-device-with-exceeded-consumable-capacity-request": Case(
        shares(ranged(2)), [claim(part(1)), claim(part(2), name="e")], None
    ),
    "consumable-capacity-multi-allocatable-device-with-request-over-max-sharing-policy": Case(
        shares(ranged(10)), [claim(part(6))], None
    ),
    "consumable-capacity-multi-allocatable-device-with-allocated-capacity-use-remaining": Case(
        shares(ranged(4)), [claim(part(2))], {"c:r0": [0]}, taken=[(0, (("c0", 2),))], parts={"c:r0": 2}
    ),
    "consumable-capacity-multi-allocatable-device-with-allocated-capacity-next-device": Case(
        shares(ranged(2), ranged(2)), [claim(part(2))], {"c:r0": [1]}, taken=[(0, (("c0", 2),))]
    ),
    "consumable-capacity-with-multi-allocatable-device-backtrack": Case(
        [
            device("d0", capacity={"c0": ranged(2)}, shared=True, text=1),
            device("d1", capacity={"c0": ranged(4)}, shared=True, text=2),
        ],
        [claim(part(2), part(2), constraints=match("text")), claim(part(2), name="e")],
        {"c:r0": [1], "c:r1": [1], "e:r0": [0]},
    ),
    "consumable-capacity-multi-allocatable-device-with-subrequest": Case(
        shares(ranged(2)),
        [claim([part(4, name="s0"), part(2, name="s1"), choice(name="s2")])],
        {"c:r0/s1": [0]},
        parts={"c:r0/s1": 2},
    ),
    "consumable-capacity-multi-allocatable-device-with-no-available-consumable-capacity": Case(
        shares(ranged(2)), [claim(part(2))], None, taken=[(0, (("c0", 2),))]
    ),
    "consumable-capacity-multi-allocatable-device-allocation-mode-all-filter-out-no-capacity": Case(
        shares(amount(2), None), [claim(part(2, devices=0))], {"c:r0": [0]}
    ),
    "consumable-capacity-multi-allocatable-device-allocation-mode-all-filter-out-insufficient-capacity": Case(
        shares(amount(2), amount(1)), [claim(part(2, devices=0))], {"c:r0": [0]}
    ),
    "consumable-capacity-multi-allocatable-device-allocation-mode-all-allocating-sufficient": Case(
        shares(amount(2), amount(1)), [claim(part(1), part(1, devices=0))], {"c:r0": [0], "c:r1": [0, 1]}
    ),
    "consumable-capacity-multi-allocatable-device-allocation-mode-all-in-use-sufficient": Case(
        shares(amount(2), amount(1)), [claim(part(1, devices=0))], {"c:r0": [0, 1]}, taken=[(0, (("c0", 1),))]
    ),
    "consumable-capacity-multi-allocatable-device-allocation-mode-all-allocating-insufficient": Case(
        shares(amount(1), amount(1)), [claim(part(1), part(1, devices=0))], None
    ),
    "consumable-capacity-multi-allocatable-device-allocation-mode-all-in-use-insufficient": Case(
        shares(amount(1), amount(1)), [claim(part(1, devices=0))], {"c:r0": [1]}, taken=[(0, (("c0", 1),))]
    ),
    "consumable-capacity-dedicated-device-with-consumable-capacity-request": Case(
        [device("d0", capacity={"c0": amount(1)})], [claim(part(1))], {"c:r0": [0]}
    ),
    "consumable-capacity-dedicated-device-with-multiple-consumable-capacity-request": Case(
        [device("d0", capacity={"c0": ranged(2)})], [claim(part(1)), claim(part(1), name="e")], None
    ),
    "allow-multiple-allocations-exclude-multi-allocatable-device-by-class-selector": Case(
        shares(amount(1)), [claim(part(1, "alone"))], None, (), {"alone": []}
    ),
    "allow-multiple-allocations-not-allocate-multi-allocatable-device-which-already-dedicated": Case(
        shares(ranged(2)), [claim(part(1))], None, taken=[(0, ())]
    ),
    "allow-multiple-allocations-not-allocate-dedicated-device-which-change-from-multi-allocatable": Case(
        [device("d0", capacity={"c0": ranged(2)})], [claim(part(1))], None, taken=[(0, (("c0", 1),))]
    ),
    "allow-multiple-allocations-with-partitionable-device": Case(
        [device(f"d{at}", ((0, size),), {"c0": amount(size)}, shared=True) for at, size in enumerate((4, 6, 4))],
        [claim(ONE, LISTED)],
        {"c:r0": 1, "c:r1/s1": 1},
        (8,),
        {"ge6": [1], "ge4": [0, 1, 2]},
    ),
    "allow-multiple-allocations-with-shared-device-counter-cross-cycle": Case(
        [device(f"d{at}", ((0, 1),), {"c0": amount(1)}, shared=True) for at in range(2)],
        [claim(part(1, "b"))],
        None,
        (1,),
        {"b": [1]},
        taken=[(0, (("c0", 1),))],
    ),
    "consumable-capacity-with-partitionable-device-multiple-capacity-pools": Case(
        [
            device(f"d{at}", ((0, size), (1, 4)), {"c0": amount(size), "c1": ranged(4)}, shared=True)
            for at, size in enumerate((2, 4, 2))
        ],
        [claim(part(1), part(2), [part(1, "ge4", "s0"), part(1, "ge2", "s1")])],
        {"c:r0": 1, "c:r1": 1, "c:r2/s1": 1},
        (4, 8),
        {"ge4": [1], "ge2": [0, 1, 2]},
        parts={"c:r0": 1, "c:r1": 2, "c:r2/s1": 1},
    ),
    "with-distinct-constraints": Case(
        [
            device(f"d{at}", shared=True, version=version, numa=at, bool=flag)
            for at, (version, flag) in enumerate(((0, 1), (1, 0), (2, 1), (0, 1)))
        ],
        [
            claim(
                ONE,
                ONE,
                ONE,
                ONE,
                constraints=(
                    *match("bool", "r0", "r1", distinct=True),
                    *match("version", "r0", "r1", "r2", distinct=True),
                    *match("numa", "r0", "r1", "r2", "r3", distinct=True),
                ),
            )
        ],
        {"c:r0": 1, "c:r1": 1, "c:r2": 1, "c:r3": 1},
    ),
    "with-distinct-constraints-attribute-not-set": Case(
        shares(None), [claim(ONE, constraints=match("bool", "r0", distinct=True))], None
    ),
    "with-distinct-constraints-with-subrequests": Case(
        [device("d0", shared=True, bool=1), device("d1", shared=True, bool=0)],
        [
            claim(
                *[[choice("true", name="s0"), choice(name="s1")]] * 3,
                constraints=match("bool", "r0", "r1", distinct=True),
            )
        ],
        {"c:r0/s0": [0], "c:r1/s1": [1], "c:r2/s0": [0]},
        (),
        {"true": [0]},
    ),
    "distinct-constraint-one-multi-allocatable-device-with-distinct-constraint": Case(
        shares(ranged(2), text=1), [claim(part(1), part(1), constraints=match("text", distinct=True))], None
    ),
    "distinct-constraint-two-multi-allocatable-devices-with-distinct-constraint": Case(
        [device(f"d{at}", capacity={"c0": ranged(4)}, shared=True, text=at) for at in range(2)],
        [claim(part(2), part(2), constraints=match("text", distinct=True))],
        {"c:r0": 1, "c:r1": 1},
        parts={"c:r0": 2, "c:r1": 2},
    ),
    "no-allocation-from-incomplete-pools": Case([], [claim(ONE)], None, incomplete=True),
    "check-combinations-within-single-request-single-pool-single-slice": Case(plain(4), [claim(choice(count=5))], None),
    "check-combinations-with-backtracking": Case(
        plain(3), [claim(choice(count=2), choice("x"))], {"c:r0": [1, 2], "c:r1": [0]}, (), KINDS
    ),
    "check-combinations-with-prioritized-list": Case(
        plain(3),
        [
            claim(
                [choice("y", 3, "s0"), choice(count=2, name="s1")], [choice(count=2, name="s0"), choice("x", name="s1")]
            )
        ],
        {"c:r0/s1": [1, 2], "c:r1/s1": [0]},
        (),
        KINDS,
    ),
}

LEFT_OUT: dict[str, tuple[str, ...]] = {
    "which slices are of the node, and of which generation, is settled before there is a layout": (
        "other-node",
        "obsolete-slice",
        "duplicate-slice",
        "node-restriction",
        "*multi-host-*",
        "different-resourceslices-*",
        "partitionable-devices-*-on-different-nodes-*",
        "partitionable-devices-per-device-node-selection-*",
        "prioritized-list-*-across-nodes",
    ),
    "a layout has the devices of one node": ("network-attached-*", "*-network-attached-*"),
    "a feature is off that is on in 1.36, or somebody may not have admin access": (
        "*-disabled",
        "*-disabled-*",
        "admin-access-enabled",
    ),
    "the contract cannot say it": (
        "unknown-selector",
        "unknown-allocation-mode",
        "unknown-constraint",
        "empty-class",
        "tainted-no-effect",
        "with-distinct-constraints-unknown-type-attribute",
    ),
    "parameters for drivers stay out of decisions": ("*-config", "*-config-*", "*-configs"),
    "conditions are waited for after the decision": ("*binding-conditions*",),
    "attributes with lists are off in 1.36": ("list-attributes-*",),
    "a pool that is not valid is in no layout": (
        "partitionable-devices-same-counter-set-name-*",
        "partitionable-devices-device-counter-consumption-references-*",
        "partitionable-devices-validation-error-*",
        "invalid-pool-*",
    ),
    "one of several cases with the same facts is enough": (
        "*-reversed",
        "*-many-plus-another",
        "with-constraint-not-matching-*-attribute",
        "all-devices-no-slices*",
        "all-devices-invalid-CEL",
        "invalid-CEL-one-device-class",
        "no-classes",
        "many-devices-okay",
        "prioritized-list-allocation-mode-all*",
        "check-combinations-*",
    ),
}
"""Patterns of the names of cases, by the reason why they are not here."""
