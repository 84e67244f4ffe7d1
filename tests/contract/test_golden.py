"""Stored bytes decode for ever: a build that cannot read an older one's ledger must not get through."""

import pytest

from tessera_schemas.documents.registry import Registered, kind_of, registered
from tessera_schemas.events import CloudEvent, PublicEvent
from tests.contract.golden_files import FOLDER, golden, listed, sha256
from tests.contract.samples import samples

TYPES = registered()
EVERY_TYPE = pytest.mark.parametrize("entry", TYPES, ids=lambda entry: entry.id)


@EVERY_TYPE
def test_stored_bytes_decode_and_encode_to_the_same_bytes(entry: Registered) -> None:
    stored = golden(entry.id).read_bytes()
    assert entry.stored_in.model_validate_json(stored).to_bytes() == stored


@EVERY_TYPE
def test_the_golden_bytes_of_a_type_hold_a_value_of_that_type(entry: Registered) -> None:
    stored = entry.stored_in.model_validate_json(golden(entry.id).read_bytes())
    if entry.name.startswith("fact."):
        assert type(stored.fact) is entry.model
    elif entry.name.startswith("record."):
        assert [type(record) for record in stored.records] == [entry.model]
    elif isinstance(stored, CloudEvent) and issubclass(entry.model, PublicEvent):
        assert stored.type == entry.model.type
        assert entry.model.model_validate(stored.data).to_data() == stored.data


@EVERY_TYPE
def test_a_sample_leaves_no_field_at_its_default(entry: Registered) -> None:
    """A field at its default would not be in the golden bytes, and so not be held to anything."""
    value = samples()[entry.id]
    if entry.name.startswith("fact."):
        value = value.fact
    elif entry.name.startswith("record."):
        value = value.records[0]
    elif isinstance(value, CloudEvent) and issubclass(entry.model, PublicEvent):
        value = entry.model.model_validate(value.data)
    unused = entry.model.model_fields.keys() - value.model_dump(exclude_defaults=True)
    assert unused - LATER.get(entry.id, set()) == NOT_WITH_OTHERS.get(entry.id, set())


LATER = {
    "record.booked.v1": {"node_count", "gpus", "gpu_model", "job", "price_gpu_ms", "price_micros"},
    "record.booking_ended.v1": {"pool", "who", "job", "reason"},
    "io.tessera.reservation.made.v1": {"job", "price_gpu_ms", "price_micros"},
    "io.tessera.reservation.ended.v1": {"job", "reason"},
    "record.booking_refused.v1": {"pool"},
    "answer.v1": {"ended", "notes", "existing", "number"},
    "command.cancel_job.v1": {"now"},
    "command.report_checkpoint.v1": {"at"},
    "command.submit_job.v1": {"dry_run", "notes"},
    "command.submit_template.v1": {"dry_run", "user", "project"},
    "fact.job_admitted.v1": {"asked", "notes"},
    "fact.bind_failed.v1": {"within", "nodes"},
    "fact.run_ended.v1": {"nodes", "steps", "uid", "oom"},
    "fact.cancel_requested.v1": {"now"},
    "fact.checkpoint_reported.v1": {"at"},
    "fact.checkpoint_saved.v1": {"at"},
    "fact.job_refused.v1": {"trace"},
    "fact.node_seen.v1": {"cordoned", "offer", "gpu_resource", "gpu_default", "share_milli", "zones", "datasets"},
    "fact.pods_back.v1": {"service"},
    "fact.run_absent.v1": {"steps"},
    "fact.run_lost.v1": {"told"},
    "fact.fence_due.v1": {"sick"},
    "io.tessera.node.fence-asked.v1": {"cause"},
    "record.fence_asked.v1": {"cause"},
    "io.tessera.job.admitted.v1": {"array", "task", "tasks", "number", "digest", "notes"},
    "io.tessera.job.evicting.v1": {"steps"},
    "io.tessera.job.released.v1": {"steps", "gpu_use"},
    "io.tessera.job.succeeded.v1": {"steps", "cost_micros", "currency"},
    "io.tessera.job.failed.v1": {"cost_micros", "currency"},
    "io.tessera.job.cancelled.v1": {"cost_micros", "currency"},
    "io.tessera.job.requeued.v1": {"cost_micros", "currency"},
    "io.tessera.job.refused.v1": {"key", "digest", "conflicts_with"},
    "job_spec.v1": {
        "service",
        "user",
        "project",
        "idle",
        "session",
        "array",
        "after",
        "begin_ts",
        "deadline_ts",
        "start_by_ts",
        "reservation",
        "start_timeout_seconds",
        "groups",
        "attach_to",
        "progress",
    },
    "ledger_message.v1": {"facts_wait", "starts_since"},
    "record.allocated.v1": {"passed"},
    "record.array_closed.v1": {"now"},
    "record.back_in_line.v1": {"service"},
    "record.earmark_set.v1": {"gain_gpu_seconds"},
    "record.finished.v1": {"rule"},
    "record.held.v1": {"operator"},
    "record.job_queued.v1": {"number"},
    "record.task_queued.v1": {"number"},
    "record.requeued.v1": {"rule"},
    "record.revoked.v1": {"now", "within", "ended", "observed", "called_in", "rule"},
    "record.saved.v1": {"at"},
    "view.job.v1": {
        *("device_classes", "claimed", "gres"),
        "deadline_ts",
        "reservation",
        "earlier_ms",
        "gpu_milli_ms",
        "gpu_counted_ts",
        "nodes",
        "held_pods",
        "held_gpu_milli",
        "array",
        "task_of",
        "task",
        "after",
        "attached_to",
        "number",
        "array_number",
        "user",
        "project",
        *("session", "address"),
        "digest",
        "operator_hold",
        "exclusive",
        "cpu_milli",
        "memory_bytes",
        "time_limit_seconds",
        "changes",
        "currency",
        "cost_micros",
        "cost_rest",
        "cost_rates",
        "gpu_use",
    },
    "view.queue.v1": {"time_limit_max_seconds"},
    "view.node.v1": {
        *("fence", "test"),
        *("cordoned", "away_since_ts", "missing_gpus", "waiting_runs", "held_back_runs"),
        *("device_classes", "gres"),
        *("drained_by", "ailments", "overruled", "health_held_back", "spare"),
        *("gpu_resource", "gpu_default", "share_milli"),
    },
}
"""Optional fields that came after a type's golden bytes, which never change and are read without them."""

NOT_WITH_OTHERS = {
    "fact.plan_proposed.v1": {"shrinks"},
    "fact.node_test_proposed.v1": {"adopted", "held", "template", "trace", "asked"},
    "command.roll_service.v1": {"undo"},
    "fact.rollout_requested.v1": {"undo"},
    "command.reserve_nodes.v1": {"first", "gpu_model", "gpus", "node_count"},
}
"""
Fields that exclude another one of their type: a plan that moves runs shrinks none, an undo names no programs,
nobody submits a test of a node, and nodes are named or chosen.
"""


MAPS = (b"numbers", b"labels", b"largest", b"stranded")
"""Objects whose keys are data: any is known there."""


@pytest.mark.parametrize("unknown", ["command.submit_job.v1", "fact.run_absent.v1", "record.bound.v1", "order.v1"])
def test_an_unknown_field_of_what_is_stored_inside_is_an_error(unknown: str) -> None:
    entry = next(entry for entry in TYPES if entry.id == unknown)
    stored = golden(unknown).read_bytes().replace(b"{", b'{"unheard_of":1,', 1)
    with pytest.raises(ValueError, match="unheard_of"):
        entry.stored_in.model_validate_json(stored)


@pytest.mark.parametrize("entry", [e for e in TYPES if hasattr(e.stored_in, "from_bytes")], ids=lambda entry: entry.id)
def test_readers_of_events_and_views_ignore_unknown_fields_at_every_depth(entry: Registered) -> None:
    stored = golden(entry.id).read_bytes()
    newer = stored.replace(b"{", b'{"unheard_of":1,')
    for names in MAPS:
        newer = newer.replace(b'"%s":{"unheard_of":1,' % names, b'"%s":{' % names)
    read = entry.stored_in.from_bytes(newer)
    if isinstance(read, CloudEvent) and issubclass(entry.model, PublicEvent):
        data = entry.model.model_validate(read.data, extra="ignore")
        assert data == entry.model.model_validate(CloudEvent.from_bytes(stored).data)
    elif entry.name != "cloud_event":  # there the new fields are kept, inside `data`
        assert read.to_bytes() == stored


def test_a_new_type_without_golden_bytes_is_noticed() -> None:
    """`python -m tests.contract.golden_files` adds them from a sample."""
    ids = {entry.id for entry in TYPES}
    assert samples().keys() == ids
    assert {entry.id for entry in TYPES if not golden(entry.id).exists()} == set()


def test_a_golden_file_is_never_changed_removed_or_added_without_its_hash() -> None:
    present = {path.relative_to(FOLDER).as_posix(): sha256(path) for path in FOLDER.glob("v*/*.json")}
    assert present == listed()


def test_the_kinds_that_tell_types_apart_are_those_of_their_golden_names() -> None:
    for entry in TYPES:
        if entry.name.startswith(("command.", "fact.", "record.")):
            assert entry.name.split(".")[1] == kind_of(entry.model)
