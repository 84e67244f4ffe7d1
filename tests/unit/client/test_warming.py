"""`tessera datasets warm`, a job that reads a data set in a domain that lacks it; `tell`, where data sets are."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tessera.client.cli import app
from tessera.client.sending.sdk import Tessera
from tessera_schemas.cluster.node_terms import ToldPlaces
from tests.unit.client.small_gateway import Gateway

RACK = "example.com/rack"
ID = "a" * 20
DONE = {"job_id": ID, "state": "admitted", "phase": "queued"}


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    """Three nodes in two racks, one of which has 500 GB of `corpus`."""
    served, nodes = Gateway(), [("node-a", "r1"), ("node-b", "r1"), ("node-c", "r3")]
    listed = [{"name": name, "labels": {RACK: rack, "kubernetes.io/hostname": name}} for name, rack in nodes]
    row = {"tenant": "lab", "dataset": "corpus", "size_bytes": 500 * 10**9, "used_ts": 1, "nodes": ["node-a"]}
    served.answers |= {"/v1/nodes": (200, {"as_of": 1, "items": listed})}
    served.answers |= {"/v1/datasets": (200, {"as_of": 1, "items": [{**row, "told_nodes": []}]})}
    served.answers |= {"/v1/jobs": (200, DONE), "/v1/me": (200, {"tenant": "lab", "user": ""})}
    yield served
    served.close()


def warm(gateway: Gateway, *words: str) -> Result:
    said = ["datasets", "warm", *words, "--image", "busybox", "--key", "k", "--", "cat", "/data"]
    return CliRunner().invoke(app, said, env={"TESSERA_API": gateway.url, "TESSERA_TOKEN": "tessera_a_b"})


def sent(gateway: Gateway) -> Any:
    (body,) = gateway.sent
    return json.loads(body)["spec"]


def test_the_job_reads_the_data_set_on_a_node_of_a_domain_that_lacks_it(gateway: Gateway) -> None:
    done = warm(gateway, "corpus", "--in", f"{RACK}=r3", "--volume", "corpus:/data:ro")
    assert (done.exit_code, done.stdout.strip()) == (0, f"job {ID}"), done.output
    spec = sent(gateway)
    assert spec["datasets"] == [{"name": "corpus", "size_bytes": 500 * 10**9}]
    assert (spec["name"], spec["priority_class"]) == ("warm-corpus", "low")
    (role,) = spec["roles"]
    assert (role["replicas"], role["node_selector"]) == (1, {RACK: "r3"})
    assert role["template"]["volumes"][0]["mount_path"] == "/data"


def test_nodes_that_have_it_are_left_out_and_each_pod_has_another_node(gateway: Gateway) -> None:
    done = warm(gateway, "corpus", "--in", f"{RACK}=r1", "--nodes", "2")
    assert done.exit_code == 0, done.output
    (role,) = sent(gateway)["roles"]
    assert role["affinity"] == [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node-a"]}]
    assert (role["replicas"], len(role["anti_affinity"])) == (1, 1)


def test_nothing_is_submitted_for_a_domain_that_has_it(gateway: Gateway) -> None:
    done = warm(gateway, "corpus", "--in", f"{RACK}=r1")
    assert (done.exit_code, gateway.sent) == (0, [])
    assert "corpus is in example.com/rack=r1 already, on node-a" in done.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("corpus", "--in", "r3"), "write LABEL=VALUE"),
        (("corpus", "--in", f"{RACK}=r9"), "no node has this label"),
        (("maps", "--in", f"{RACK}=r3"), "no run has read maps yet"),
        (("maps", "--in", f"{RACK}=r3", "--size", "much"), "write bytes, as 500Gi"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_option(gateway: Gateway, words: tuple[str, ...], told: str) -> None:
    done = warm(gateway, *words)
    assert (done.exit_code, gateway.sent) == (2, []), done.output
    assert told in done.output


PLACES = "/v1/datasets/corpus/places"


def tell(gateway: Gateway, *words: str, state: str = "accepted") -> Result:
    gateway.answers |= {PLACES: (202, {"dataset": "corpus", "state": state, "as_of": 2})}
    env = {"TESSERA_API": gateway.url, "TESSERA_TOKEN": "tessera_a_b"}
    return CliRunner().invoke(app, ["datasets", "tell", *words], env=env)


@pytest.mark.parametrize(("state", "says"), [("accepted", "its places are told"), ("known", "that was known")])
def test_a_tenant_tells_where_its_data_set_is_with_the_size_that_was_said_last(
    gateway: Gateway, state: str, says: str
) -> None:
    done = tell(gateway, "corpus", "--on", "node-b", "--on", "node-c", "--gone", "node-a", state=state)
    assert (done.exit_code, done.stdout.strip()) == (0, f"corpus: {says}"), done.output
    (body,) = gateway.sent
    assert json.loads(body) == {"size_bytes": 500 * 10**9, "nodes": ["node-b", "node-c"], "gone": ["node-a"]}


def test_only_what_nodes_have_needs_a_size(gateway: Gateway) -> None:
    assert tell(gateway, "corpus", "--gone", "node-a").exit_code == 0
    assert tell(gateway, "corpus", "--on", "node-a", "--size", "1Ti").exit_code == 0
    assert [json.loads(body) for body in gateway.sent] == [
        {"gone": ["node-a"]},
        {"size_bytes": 2**40, "nodes": ["node-a"]},
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [((), "--on or --gone"), (("--on", "node-a", "--gone", "node-a"), "node-a is also in nodes")],
    ids=["nothing", "both"],
)
def test_a_word_that_says_nothing_is_refused_before_it_is_sent(
    gateway: Gateway, words: tuple[str, ...], told: str
) -> None:
    done = tell(gateway, "corpus", *words)
    assert (done.exit_code, gateway.sent) == (2, []), done.output
    assert told in done.output


def test_what_the_page_writes_means_the_same_as_a_command_and_over_http(gateway: Gateway) -> None:
    lines = (Path(__file__).parents[3] / "docs" / "placement.md").read_text(encoding="utf-8").splitlines()
    (by_http,) = (line for line in lines if line.startswith("curl -sX PUT"))
    (by_command,) = (line for line in lines if line.startswith("tessera datasets tell"))
    done = tell(gateway, *shlex.split(by_command)[3:])
    assert done.exit_code == 0, done.output
    (body,), written = gateway.sent, shlex.split(by_http)
    said = ToldPlaces.model_validate_json(written[written.index("-d") + 1])
    assert ToldPlaces.model_validate_json(body) == said
    assert PLACES in by_http


async def test_a_program_tells_through_the_gateway(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_API", gateway.url)
    monkeypatch.setenv("TESSERA_TOKEN", "tessera_a_b")
    gateway.answers |= {PLACES: (202, {"dataset": "corpus", "state": "accepted", "as_of": 2})}
    async with Tessera.connect() as tessera:
        await tessera.tell_dataset("corpus", size_bytes=5, nodes=["node-a"])
    (body,) = gateway.sent
    assert json.loads(body) == {"size_bytes": 5, "nodes": ["node-a"]}
