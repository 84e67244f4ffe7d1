"""What the images install and docker-compose.yml runs is what the code says; containers are in tests/containers."""

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from deploy.lock_of import lock_of
from deploy.pin_images import DIGEST, chart_values, compose_variables
from tessera_schemas.shard.services import COMPACT, LAYOUTS, SERVICES, SPECS

ROOT = Path(__file__).parents[3]
PARTS: dict[str, list[str]] = tomllib.loads((ROOT / "deploy" / "parts.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCAL = tomllib.loads((ROOT / "services/tessera_local/pyproject.toml").read_text())["project"]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SMALL: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose" / "small.yaml").read_text())
SHARING = "followers"
MEMBERS = LAYOUTS[COMPACT][SHARING]
LOCAL_ONLY = {"tessera-schemas", "numpy", "python-dateutil", "pyyaml", "rich", "typer"}
ASKED: Mapping[str, list[str]] = {
    "service": [
        line
        for line in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["server"]]
        if Requirement(line).name not in LOCAL_ONLY
    ],
    "kubernetes": [
        line for line in PROJECT["optional-dependencies"]["binder"] if Requirement(line).name == "kubernetes"
    ],
    "selectors": [line for line in PROJECT["optional-dependencies"]["binder"] if line.startswith("cel-")],
    "placement": ["numpy"],
    "learning": ["numba"],
    "logs": [line for line in PROJECT["optional-dependencies"]["logs"] if not line.startswith("tessera-")],
    "client": ["python-dateutil", "pyyaml", "rich", "typer"],
    "build": ["hatchling"],
    "local": [
        *(line for line in LOCAL["dependencies"] if not line.startswith("tessera-")),
        *("async-timeout", "editables"),
    ],
}
BELOW: Mapping[str, tuple[str, ...]] = {
    "kubernetes": ("service",),
    "learning": ("service", "placement"),
    "logs": ("service",),
    "client": ("service",),
    "local": ("service", "placement", "kubernetes", "client", "build"),
}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _needed(asked: Iterable[str]) -> set[str]:
    """Names of these packages and of all that they need on Linux, in any Python from 3.11.4 to 3.13."""
    found: set[str] = set()
    todo = [Requirement(line) for line in asked]
    seen = set()
    while todo:
        wanted = todo.pop()
        key = _normal(wanted.name), frozenset(wanted.extras)
        if key in seen:
            continue
        seen.add(key)
        found.add(key[0])
        todo += [line for text in requires(wanted.name) or () if _applies(line := Requirement(text), wanted.extras)]
    return found


def _applies(line: Requirement, extras: Iterable[str]) -> bool:
    environments = [
        {"extra": extra, "python_version": version, "python_full_version": f"{version}.4"}
        for extra in ("", *extras)
        for version in ("3.11", "3.12", "3.13")
    ]
    return line.marker is None or any(line.marker.evaluate(environment) for environment in environments)


@pytest.mark.parametrize("part", sorted(PARTS))
def test_a_part_lists_what_it_asks_for_and_all_that_this_needs(part: str) -> None:
    below = {name for lower in BELOW.get(part, ()) for name in PARTS[lower]}
    assert PARTS[part] == sorted(_needed(ASKED[part]) - below)


@pytest.mark.parametrize("part", sorted(PARTS))
def test_every_package_of_a_part_is_pinned_with_its_hashes(part: str) -> None:
    blocks = re.split(r"^[a-z0-9._-]+==", lock_of(LOCK, PARTS[part]), flags=re.MULTILINE)[1:]
    assert len(blocks) == len(PARTS[part])
    assert all("--hash=sha256:" in block for block in blocks)


def _users() -> dict[str, set[str]]:
    """Targets that copy a part, by part."""
    requester = re.findall(r"^FROM \S+ AS (\S+)|--from=build /parts/(\w+) ", DOCKERFILE, re.MULTILINE)
    target, users = "", dict[str, set[str]]()
    for stage, part in requester:
        target = stage or target
        if part:
            users.setdefault(part, set()).add(target)
    return users


def test_only_reclamation_asks_for_what_learning_needs() -> None:
    users = _users()
    assert users["learning"] == {"reclamation"}
    assert users["selectors"] == {"binder"}
    assert users["logs"] == {"gateway-logs"}
    assert users["local"] == {"client"}
    assert users["kubernetes"] == {spec.name for spec in SPECS if spec.needs_cluster} | {"client"}
    assert "numba" in " ".join(PROJECT["optional-dependencies"]["reclamation"])


def test_those_that_ask_where_pods_fit_have_the_table_and_no_others_do() -> None:
    has = re.compile(
        r"^FROM common AS (\S+)\n(?:(?!^FROM)[^\n]*\n)*?COPY --from=build /parts/placement /", re.MULTILINE
    )
    asks = "import sys, tessera.{}.main; sys.exit('numpy' in sys.modules)"
    asking = {name for name in SERVICES if subprocess.run([sys.executable, "-c", asks.format(name)]).returncode}
    assert set(has.findall(DOCKERFILE)) == asking | {"client"}


def test_no_extra_is_empty() -> None:
    assert all(PROJECT["optional-dependencies"].values())


def test_every_service_has_a_target_and_an_entry() -> None:
    targets = set(re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE, re.MULTILINE))
    assert set(SERVICES) <= targets
    for name in SERVICES:
        entry = COMPOSE["services"][name]
        assert entry["build"]["target"] == name
        assert f'CMD ["run", "{name}"]' in DOCKERFILE


def test_those_that_call_kubernetes_know_its_address_and_no_others() -> None:
    told = {name for name in SERVICES if "TESSERA_CLUSTER_URL" in COMPOSE["services"][name]["environment"]}
    assert told == {spec.name for spec in SPECS if spec.calls_cluster}


def test_the_http_api_answers_to_the_names_of_the_port_that_is_published() -> None:
    gateway = COMPOSE["services"]["gateway"]
    assert all(port.startswith("127.0.0.1:") for port in gateway["ports"])
    assert {"127.0.0.1", "localhost"} <= set(json.loads(gateway["environment"]["TESSERA_ALLOWED_HOSTS"]))


@pytest.mark.parametrize("name", [*sorted(COMPOSE["services"]), SHARING])
def test_an_entry_is_hardened_and_keeps_no_secret(name: str) -> None:
    entry = (SMALL if name == SHARING else COMPOSE)["services"][name]
    assert entry["read_only"] is True
    assert entry["cap_drop"] == ["ALL"]
    assert entry["security_opt"] == ["no-new-privileges:true"]
    assert "restart" in entry
    secret = re.compile("PASSWORD|SECRET|TOKEN$", re.IGNORECASE)
    assert not [key for key in entry.get("environment", {}) if secret.search(key)]
    assert all(port.startswith("127.0.0.1:") for port in entry.get("ports", ()))


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_sees_its_own_identity_and_no_other(name: str) -> None:
    volumes = [volume for volume in COMPOSE["services"][name]["volumes"] if not volume.startswith("${")]
    own = [f"{name}:/var/lib/tessera/own:ro"]
    assert volumes == own + (["job-logs:/var/lib/tessera/job-logs"] if name == "gateway" else [])


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_limits_and_waits_until_what_it_needs_is_well(name: str) -> None:
    entry = COMPOSE["services"][name]
    assert entry["mem_limit"]
    assert entry["cpus"]
    assert {needed: said["condition"] for needed, said in entry["depends_on"].items()} == {
        "nats": "service_healthy",
        "redis": "service_healthy",
        "init": "service_completed_successfully",
    }


def test_the_small_layout_has_one_container_for_all_that_share_a_process() -> None:
    services = SMALL["services"]
    assert services.keys() == {*MEMBERS, SHARING}
    assert all(services[name] == {"profiles": ["separate"]} for name in MEMBERS), "up for who asks, and else unchanged"
    assert services[SHARING]["command"] == ["run", "+".join(MEMBERS)]


def test_the_image_of_those_that_share_a_process_has_what_each_needs() -> None:
    target = SMALL["services"][SHARING]["build"]["target"]
    assert SMALL["services"][SHARING]["image"] == COMPOSE["services"][target]["image"]
    assert all(target in users for users in _users().values() if users & set(MEMBERS))


def test_those_that_share_a_process_are_told_what_each_is_told_by_itself() -> None:
    """All but the files that are by service here."""
    together, apart = SMALL["services"][SHARING], [COMPOSE["services"][name] for name in MEMBERS]
    told = {key: value for entry in apart for key, value in entry["environment"].items()}
    own = {key: value for key, value in together["environment"].items() if told[key] != value}
    assert together["environment"].keys() == told.keys()
    assert own == {
        "TESSERA_CREDENTIALS_FILE": "/var/lib/tessera/own/{service}/identity.json",
        "TESSERA_KEYS_DIR": "/var/lib/tessera/own/notifier/webhook-secrets",
    }
    same = apart[0].keys() - {"image", "build", "environment", "volumes", "mem_limit"}
    assert {key: together[key] for key in same} == {key: apart[0][key] for key in same}


def test_those_that_share_a_process_see_their_own_identities_and_no_other() -> None:
    volumes = [volume for volume in SMALL["services"][SHARING]["volumes"] if not volume.startswith("${")]
    assert sorted(volumes) == sorted(f"{name}:/var/lib/tessera/own/{name}:ro" for name in MEMBERS)


def test_prometheus_of_compose_finds_a_target_by_the_name_of_each_service_that_shares_a_process() -> None:
    (job,) = yaml.safe_load((ROOT / "deploy" / "compose" / "prometheus.yaml").read_text())["scrape_configs"]
    ports = [one["port"] for one in job["dns_sd_configs"] if one["names"] == [SHARING]]
    assert [_relabelled(job["relabel_configs"], SHARING, port) for port in ports] == list(MEMBERS)
    assert _relabelled(job["relabel_configs"], "scheduler", 8080) == "scheduler"


def _relabelled(rules: list[dict[str, Any]], name: str, port: int) -> str:
    """The label `service` of a target at that port of what DNS knows by a name."""
    labels = {"__meta_dns_name": name, "__address__": f"10.0.0.1:{port}"}
    for rule in rules:
        value = ";".join(labels[label] for label in rule.get("source_labels", ()))
        if re.fullmatch(rule.get("regex", ".*"), value):
            labels[rule["target_label"]] = rule.get("replacement", value)
    return labels["service"]


def digest(image: str) -> str:
    """As a registry would say."""
    return f"sha256:{hashlib.sha256(image.encode()).hexdigest()}"


def test_every_image_that_compose_and_the_build_take_from_others_can_be_pinned() -> None:
    compose, dockerfile = (ROOT / "docker-compose.yml").read_text(), (ROOT / "deploy" / "Dockerfile").read_text()
    lines = dict(line.split("=", 1) for line in compose_variables(compose, dockerfile, digest).splitlines())
    foreign = [
        each["image"] for each in yaml.safe_load(compose)["services"].values() if "TESSERA_IMAGES" not in each["image"]
    ]
    assert {image.partition(":")[0].removeprefix("${") for image in foreign} | {"PYTHON_IMAGE"} == set(lines)
    assert all(DIGEST.fullmatch(image.partition("@")[2]) for image in lines.values())


def test_the_charts_values_pin_each_image_and_leave_what_is_pinned() -> None:
    pinned = f"nats:2@{digest('mine')}"
    values = {
        "image": {"registry": "registry.example", "repository": "tessera"},
        "nats": {"image": pinned},
        "redis": {"image": "redis:7"},
    }
    made = yaml.safe_load(chart_values(values, ["binder", "client"], "0.4.0", digest))
    assert made["nats"]["image"] == pinned
    assert made["redis"]["image"] == f"redis:7@{digest('redis:7')}"
    assert made["image"]["digests"] == {
        name: digest(f"registry.example/tessera-{name}:0.4.0") for name in ("binder", "client")
    }
