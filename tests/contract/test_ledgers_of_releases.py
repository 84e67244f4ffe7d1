"""Ledgers that a release wrote: every later build reads, verifies and continues them, and hashes their states alike."""

import json
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from tessera.client.ledger.replay import verify
from tessera.domain.storing.later import LATER
from tests.builders import node_seen
from tests.contract.golden_files import FOLDER
from tests.contract.state_forms import field_names, types_of_state
from tests.ledgers import Committed

LEDGERS = FOLDER / "ledgers"
HASHES = {
    "0.3-demo": "83fb70b70315d9e4f5728b09b836464a72d794e9ae55200876b9aecedb07a341",
    "0.3-faults": "f1613813c47d3ea6151776fc5f61e505bff86da2cbacf0e7d849bb34fb912db0",
    "0.4-faults": "82cd6573316ca60d559f2c20f69ac1ad0e52a876f411cf98caada3370f69d851",
}
"""The state's hash after the last message, as the release itself told it; `faults` is a seed of its simulator."""


@pytest.fixture(params=HASHES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def stored(release: str) -> list[bytes]:
    return (LEDGERS / f"{release}.jsonl").read_bytes().splitlines()


def test_a_ledger_of_a_release_folds_to_the_state_that_the_release_had(release: str) -> None:
    report = verify(stored(release))
    assert (report.ok, report.findings) == (True, [])
    assert (report.n, report.state_hash) == (len(stored(release)), HASHES[release])


def test_a_ledger_of_a_release_is_continued_by_this_build(release: str) -> None:
    older = stored(release)
    shard = Committed.continuing(older)
    shard.commit(holder="scheduler-next", checkpoint=True)
    shard.begin(node_seen("node-of-now"), expected_version=shard.state.config.version)
    shard.run_to_its_end()
    report = verify(shard.stored)
    assert (report.ok, report.findings) == (True, [])
    assert shard.stored[: len(older)] == older
    assert report.recomputed >= len(shard.stored) - len(older)


FIELDS: dict[str, list[str]] = json.loads((LEDGERS / "0.3-fields.json").read_text())
CALLED_NOW = {
    "Extra": "SurplusPod",
    "Left": "PublishedSlots",
    "Kind": "MixKind",
    "Line": "QueueOrder",
    "Others": "OthersUse",
}
"""Types of 0.3 whose class has another name by now: the name of a class is not stored."""


@pytest.mark.parametrize("name", FIELDS)
def test_what_a_state_is_made_of_keeps_the_fields_of_a_release_and_marks_later_ones(name: str) -> None:
    """A field that is not `later` would change the hash of every state, and a ledger of 0.3 would halt its readers."""
    part, old = types_of_state()[CALLED_NOW.get(name, name)], FIELDS[name]
    if is_dataclass(part):
        assert field_names(part)[: len(old)] == old, "later fields stand last"
    assert set(old) <= set(field_names(part))
    assert {new for new in set(field_names(part)) - set(old) if not is_later(part, new)} == set()


def is_later(part: type[Any], name: str) -> bool:
    if is_dataclass(part):
        return next(bool(each.metadata.get(LATER)) for each in fields(part) if each.name == name)
    return part.model_fields[name].exclude_if is not None
