"""Selectors in CEL take the devices that Kubernetes' words mean, and end with a sentence otherwise."""

import contextlib
import time

import pytest

from tessera.binder.devices.decide.selectors import BadSelector, check_selectors, takes, view_of, views_of
from tests.unit.binder.devices.published import gpu, read, slice_object

DOMAIN = 'device.attributes["gpu.nvidia.com"]'
MEMORY = 'device.capacity["gpu.nvidia.com"].memory'


def view(**more: object):
    attributes = {"index": {"int": 3}, "migCapable": {"bool": True}, **more.pop("attributes", {})}
    one = read(slice_object([gpu(2, attributes=attributes, **more)]))[0]
    return view_of(one.driver, one.devices[0].shape)


HOLD = [
    'device.driver == "gpu.nvidia.com"',
    f'{DOMAIN}.type == "gpu"',
    f'{DOMAIN}.productName.lowerAscii().matches("^.*h100.*$")',
    f"{DOMAIN}.index > 2 && {DOMAIN}.migCapable",
    f'{DOMAIN}.index != "3"',
    f'{DOMAIN}.driverVersion.compareTo(semver("560.1.0")) >= 0',
    f'{DOMAIN}.driverVersion.isGreaterThan(semver("580.95.5-rc.1"))',
    f'{DOMAIN}.driverVersion.isLessThan(semver("v581", true)) && {DOMAIN}.driverVersion.major() == 580',
    f'{DOMAIN}.driverVersion == semver("580.95.5")',
    'isSemver("1.2.3") && !isSemver("1.2")',
    f'{MEMORY}.compareTo(quantity("10Gi")) >= 0',
    f'{MEMORY}.isGreaterThan(quantity("79Gi")) && {MEMORY}.isLessThan(quantity("80.5Gi"))',
    f'{MEMORY} == quantity("81920Mi")',
    f"{MEMORY}.asInteger() == 85899345920",
    f'{MEMORY}.sub(quantity("79Gi")).add(1).compareTo(quantity("1073741825")) == 0',
    'quantity("-1").sign() == -1 && !quantity("500m").isInteger() && isQuantity("1Ki") && !isQuantity("x")',
    f'cel.bind(own, {DOMAIN}, own.type == "gpu" && has(own.migCapable))',
    'cel.bind(cap, device.capacity["gpu.nvidia.com"], has(cap.memory) && cap.memory.compareTo(quantity("16Gi")) >= 0)',
    f'["gpu", "mig"].exists(kind, kind == {DOMAIN}.type)',
    f'{DOMAIN}.?none.orValue("no") == "no"',
    'device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:1"',
    '!("dra.net" in device.attributes)',
    '!has(device.attributes["dra.net"].rdma)',
    '"dra.net" in device.attributes ? device.attributes["dra.net"].rdma : true',
    "!device.allowMultipleAllocations",
    f'{DOMAIN}.type in ["gpu"]',
    'device.driver == "other" ? device.attributes["other"].x == 1 : true',
    'device.attributes["other"].?x.orValue(1) == 1',
]


@pytest.mark.parametrize("expression", HOLD)
def test_what_kubernetes_and_drivers_write_holds(expression: str):
    check_selectors([expression], frozenset({"gpu.nvidia.com/uuid"}))
    assert takes([expression], view())


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        (f"{DOMAIN}.none == 1", "none"),
        ('device.attributes["dra.net"].rdma', "rdma"),
        ('device.capacity["dra.net"].x.asInteger() == 1', "x"),
        ("device.nothing == 1", "nothing"),
        (f"{DOMAIN}.type", "no boolean"),
        (f'{DOMAIN}.driverVersion.compareTo(quantity("1")) == 0', "compare"),
        (f'{DOMAIN}.index.compareTo(quantity("1")) == 0', "compareTo"),
        ('device.driver.matches("(")', "regular expression"),
        (f"{DOMAIN}.index / 0 == 1", "divide"),
        ('quantity("many").asInteger() == 1', "many"),
    ],
)
def test_an_error_is_told_with_its_expression(expression: str, error: str):
    check_selectors([expression], frozenset())
    with pytest.raises(BadSelector, match=error) as caught:
        takes([expression], view())
    assert str(caught.value).startswith(expression)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("1 +", "Syntax error"),
        ("device.driver ==", "Syntax error"),
        ('1 == "a"', "overload"),
        ('"text"', "no boolean"),
        ("other == 1", "undeclared"),
        ("device.driver.sort()", "undeclared"),
        (f'{DOMAIN}.uuid == "GPU-1"', "uuid is another on every device"),
        (f"has({DOMAIN}.uuid)", "uuid is another on every device"),
        ('"a".replace("a", "aa") == "aa"', "replace is not available"),
    ],
)
def test_an_expression_that_is_no_condition_on_a_device_is_refused(expression: str, error: str):
    with pytest.raises(BadSelector, match=error):
        check_selectors([expression], frozenset({"gpu.nvidia.com/uuid"}))


def test_an_error_does_not_count_where_another_expression_says_no():
    mig, failing = f'{DOMAIN}.type == "mig"', f"{DOMAIN}.none == 1"
    assert not takes([mig, failing], view())
    assert not takes([failing, mig], view())
    with pytest.raises(BadSelector):
        takes([failing, f'{DOMAIN}.type == "gpu"'], view())


def test_devices_that_no_expression_can_tell_apart_are_looked_at_once():
    one = read(slice_object([gpu(0), gpu(1), gpu(2)]))[0]
    seen = [(one.driver, each.shape) for each in one.devices]
    assert [bits for _, bits in views_of(seen)] == [0b011, 0b100]


def nested(count: int, first: str, again: str, end: str) -> str:
    binds = [f"cel.bind(v{at}, {again.replace('v', f'v{at - 1}') if at else first}, " for at in range(count)]
    return "".join(binds) + end.replace("v", f"v{count - 1}") + ")" * count


TEN = "[0,1,2,3,4,5,6,7,8,9]"


@pytest.mark.parametrize(
    "expression",
    [
        pytest.param(nested(29, '"xxxxxxxxxx"', "v + v", "size(v) > 1"), id="texts that double"),
        pytest.param(nested(3, "[1]", f"[{', '.join(['v'] * 600)}]", "v == v"), id="lists of lists"),
        pytest.param("".join(f"{TEN}.all(a{at}, " for at in range(8)) + "true" + ")" * 8, id="loops in loops"),
        pytest.param("(" * 5000 + "true" + ")" * 5000, id="deep brackets"),
        pytest.param("!" * 10_000 + "device.attributes", id="many signs"),
        pytest.param(f'"{"x" * 9_000}".matches("{"(x+x+)+" * 100}y")', id="a pattern that looks back"),
        pytest.param(" || ".join(["device.driver == ''"] * 480), id="long"),
        pytest.param('"\\u0000" == device.driver', id="no character"),
    ],
)
def test_no_expression_takes_long_or_much(expression: str):
    began = time.process_time()
    with contextlib.suppress(BadSelector):
        check_selectors([expression], frozenset())
        takes([expression], view())
    assert time.process_time() - began < 2
