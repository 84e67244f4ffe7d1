"""What is generated for other languages is current, valid, and says the same as the models and the subject table."""

import json
import shutil
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tessera.kernel.provisioning.credential_files import Identity
from tessera.kernel.provisioning.permissions import allowed
from tessera_schemas import events
from tessera_schemas.documents import generate
from tessera_schemas.documents.registry import Registered, kind_of, registered
from tessera_schemas.events import EVENT_TYPES
from tessera_schemas.facts import FACTS, AnyFact
from tessera_schemas.ledger import RECORDS
from tessera_schemas.shard.services import SERVICES
from tessera_schemas.shard.streams import Retention, streams
from tests.contract.golden_files import golden
from tests.npm import NEEDS_NODE, NODE, check_lock, installed

AJV = Path(__file__).parent / "ajv"
OUT = Path(__file__).parents[2] / "schemas" / "generated"
TYPES = registered()
EVERY_TYPE = pytest.mark.parametrize("entry", TYPES, ids=lambda entry: entry.id)


def schema(entry: Registered) -> Any:
    return json.loads((OUT / f"{entry.id}.json").read_text())


def asyncapi() -> Any:
    return yaml.safe_load((OUT / "asyncapi.yaml").read_text())


def refs(node: Any) -> list[str]:
    if isinstance(node, list):
        return [ref for item in node for ref in refs(item)]
    if not isinstance(node, dict):
        return []
    here = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
    return here + [ref for item in node.values() for ref in refs(item)]


def resolved(document: Any, ref: str) -> Any:
    node = document
    for part in ref.removeprefix("#/").split("/"):
        node = node[part]
    return node


def golden_value(entry: Registered) -> Any:
    """The part of the golden bytes that is a value of the type."""
    stored = json.loads(golden(entry.id).read_bytes())
    if entry.name.startswith("fact."):
        return stored["fact"]
    if entry.name.startswith("record."):
        return stored["records"][0]
    return stored["data"] if entry.name.startswith("io.tessera.") else stored


def test_what_is_generated_is_current() -> None:
    assert generate.differences(OUT) == []


def test_check_names_stale_missing_and_extra_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "generated"
    shutil.copytree(OUT, out)
    assert generate.main(["--check", str(out)]) == 0
    (out / "order.v1.json").write_text("{}")
    (out / "asyncapi.yaml").unlink()
    (out / "older.v1.json").write_text("{}")
    assert generate.main(["--check", str(out)]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told == ["missing: asyncapi.yaml", "extra: older.v1.json", "stale: order.v1.json"]
    assert generate.main([str(out)]) == 0
    assert generate.differences(out) == []


@EVERY_TYPE
def test_every_json_schema_is_valid_and_named_by_its_type(entry: Registered) -> None:
    found = schema(entry)
    Draft202012Validator.check_schema(found)
    assert found["$id"] == f"urn:tessera:schema:{entry.id}"


@EVERY_TYPE
def test_every_json_schema_accepts_the_golden_bytes(entry: Registered) -> None:
    Draft202012Validator(schema(entry)).validate(golden_value(entry))


@NEEDS_NODE
def test_ajv_compiles_every_json_schema_in_strict_mode_and_accepts_the_golden_bytes(tmp_path: Path) -> None:
    values = tmp_path / "values.json"
    values.write_text(json.dumps({entry.id: golden_value(entry) for entry in TYPES}))
    words = [str(NODE), "compile.mjs", str(OUT), str(values)]
    done = subprocess.run(words, cwd=installed(AJV, tmp_path), capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_lock_of_ajv_names_no_registry() -> None:
    check_lock(AJV)


@EVERY_TYPE
def test_schemas_are_strict_inside_and_lenient_outside(entry: Registered) -> None:
    accepts = Draft202012Validator(schema(entry)).is_valid({**golden_value(entry), "unheard_of": 1})
    assert accepts == entry.name.startswith(("io.tessera.", "view.", "answer", "cloud_event"))


def test_every_event_class_is_published_and_names_its_schema() -> None:
    leaves = {cls for cls in vars(events).values() if isinstance(cls, type) and "type" in vars(cls)}
    assert leaves == set(events.EVENT_TYPES)
    for entry in TYPES:
        if entry.name.startswith("io.tessera."):
            assert json.loads(golden(entry.id).read_bytes())["dataschema"] == entry.urn


def test_every_fact_has_exactly_one_service_that_may_say_it() -> None:
    assert {f"fact.{kind_of(model)}.v1" for model in FACTS} == {e.id for e in TYPES if e.name.startswith("fact.")}


def test_every_reference_of_the_asyncapi_document_resolves() -> None:
    document = asyncapi()
    found = refs(document)
    assert found
    for ref in found:
        if ref.startswith("#/"):
            assert resolved(document, ref)
        else:
            assert (OUT / ref).is_file()


def test_every_stream_of_the_table_is_described_with_its_senders_and_receivers() -> None:
    document = asyncapi()
    for spec in streams("{shard}"):
        named = {
            name: channel
            for name, channel in document["channels"].items()
            if channel.get("x-jetstream", {}).get("name") == spec.name
        }
        assert named, spec.name
        senders: set[str] = set()
        for name, channel in named.items():
            told = channel["x-jetstream"]
            assert tuple(told["subjects"]) == spec.subjects
            assert Retention(told["retention"]) is spec.retention
            patterns = [subject.replace(">", "*") for subject in spec.subjects]
            assert any(fnmatchcase(channel["address"], pattern) for pattern in patterns)
            assert channel["address"].count("{") == len(channel["parameters"])
            roles = {
                action: {
                    operation["tags"][0]["name"]
                    for operation in document["operations"].values()
                    if operation["action"] == action and operation["channel"]["$ref"] == f"#/channels/{name}"
                }
                for action in ("send", "receive")
            }
            assert roles["send"]
            assert roles["receive"] == set(spec.readers)
            senders |= roles["send"]
        assert senders == set(spec.writers)


def test_the_ways_to_read_events_are_described_with_who_may_and_what_comes() -> None:
    document = asyncapi()
    channels, operations = document["channels"], document["operations"]
    events_of = set(channels["events"]["messages"])
    readers = {
        name: {
            operation["tags"][0]["name"]
            for operation in operations.values()
            if operation["channel"]["$ref"] == f"#/channels/{name}"
        }
        for name in ("live_events", "subscriber_events", "webhook_events")
    }
    assert readers["live_events"] == {"tenant", "projection", "notifier", "gateway", "operator"}
    assert readers["subscriber_events"] == {"tenant"}
    assert readers["webhook_events"] == {"notifier"}
    for name in readers:
        assert set(channels[name]["messages"]) == events_of
        assert channels[name]["address"].count("{") == len(channels[name]["parameters"])
    payload = document["components"]["messages"]["io.tessera.job.allocated.v1"]["payload"]["schema"]
    assert payload["allOf"][0] == {"$ref": "./cloud_event.v1.json"}


@pytest.mark.parametrize(
    ("channel", "filled", "identity"),
    [
        ("subscriber_events", {"tenant": "acme", "subscriber": "ci"}, Identity("acme", "tenant", ("ci",))),
        ("webhook_events", {"tenant": "acme", "webhook": "chat"}, Identity("notifier", "notifier", ("acme_chat",))),
    ],
)
def test_the_subjects_of_a_durable_consumer_are_those_that_its_reader_may_use(
    channel: str, filled: dict[str, str], identity: Identity
) -> None:
    told = asyncapi()["channels"][channel]["x-jetstream"]
    named = {told[key].format(shard="main", **filled) for key in ("info", "pull", "acknowledge")}
    assert named <= set(allowed(identity, "main").publish)
    live = asyncapi()["channels"]["live_events"]["address"].format(shard="main", tenant="acme", queue="q", type="t")
    assert live.startswith("live.events.main.acme.")


def test_only_the_binder_is_said_to_adopt_and_it_sends_nothing_else_as_a_command() -> None:
    operations = asyncapi()["operations"]
    assert "binder.send.adoptions" in operations
    assert not {"binder.send.submit", "tenant.send.adoptions", "gateway.send.adoptions"} & operations.keys()


def test_each_fact_is_sent_by_those_services_alone_that_its_class_names() -> None:
    operations = asyncapi()["operations"]
    for model in FACTS:
        ref = f"#/channels/facts/messages/fact.{kind_of(model)}.v1"
        senders = [
            operation["tags"][0]["name"]
            for operation in operations.values()
            if operation["action"] == "send" and {"$ref": ref} in operation["messages"]
        ]
        assert set(senders) == {*model.senders} <= {*SERVICES}
        assert len(senders) == len(set(senders))
    (planned,) = [model.senders for model in FACTS if len(model.senders) > 1]
    assert planned == ("preemption", "reclamation")


def test_every_event_is_given_by_some_record() -> None:
    """Two records give one of several, by what they say."""
    given = {record.event for record in RECORDS if record.event is not None}
    by_what_is_said = {"job.unheld.v1", "job.succeeded.v1", "job.failed.v1", "job.cancelled.v1"}
    by_what_is_said |= {"budget.warned.v1", "budget.spent.v1", "node.undrained.v1"}
    assert {event.type.removeprefix("io.tessera.") for event in {*EVENT_TYPES} - given} == by_what_is_said


def test_a_fact_that_names_no_service_is_refused() -> None:
    with pytest.raises(TypeError, match="names no service"):
        type("Stray", (AnyFact,), {})


def test_every_message_that_a_schema_describes_is_on_some_channel_or_is_a_part_of_one() -> None:
    """Events and facts are whole messages; records travel in the ledger message, views and config are in Redis."""
    on_channels = {type_ for channel in asyncapi()["channels"].values() for type_ in channel["messages"]}
    parts = {e.id for e in TYPES if e.name.startswith(("record.", "view.")) or e.name in PARTS}
    assert {entry.id for entry in TYPES} - parts <= on_channels


PARTS = ("cloud_event", "config", "fact_message", "job_spec")
