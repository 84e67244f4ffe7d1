"""Every configuration that is accepted can be served: decided by, folded, kept, shown, and read by every service."""

from itertools import chain
from typing import Any

import orjson
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tessera.admission.decide.configuration import find_config_faults
from tessera.admission.decide.policy import templates_of, tree_of
from tessera.client.cluster import applying
from tessera.client.input import files
from tessera.client.views.queues import queue_rows, quota_rows
from tessera.domain.storing import snapshot
from tessera.domain.storing.statehash import StateHash
from tessera.engine.placement.free_slots import slots
from tessera.projection.views import all_views
from tessera.testkit.rules_checker.quotas import Quotas
from tessera_schemas.base import INT_MAX
from tessera_schemas.commands import ApplyConfig
from tessera_schemas.config import Config, ConfigBody
from tessera_schemas.shard.bounds import DEPTH_MAX
from tessera_schemas.shard.recommended import explicit, filled
from tessera_schemas.text.reading import read_operator_command
from tessera_schemas.views import NodeView, QueueView
from tests.builders import admitted, config_proposed, job_spec, node_seen, role
from tests.ledgers import Committed

RESOURCES = ("cpu_milli", "memory_bytes", "gpu_milli")
NAMES = st.sampled_from(("a", "b0", "c-c", "x" * 63, "0", "kube-system", "operator"))
AMOUNTS = st.sampled_from((0, 1, 8000, INT_MAX // 2, INT_MAX))


@st.composite
def queues(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A tree as wide or as deep as comes, the deepest of them deeper than is accepted."""
    deep, made = draw(st.booleans()), [{"name": "q0"}]
    for at in range(1, draw(st.integers(1, DEPTH_MAX + 1 if deep else 6))):
        parent = at - 1 if deep else draw(st.integers(-1, at - 1))
        above = made[parent] if parent >= 0 else {}
        placed = {"parent": above["name"], "pool": above.get("pool", "default")} if above else {}
        made.append({"name": f"q{at}", **placed})
    for queue in made:
        queue |= draw(st.fixed_dictionaries({}, optional={
            "weight": st.sampled_from((0, 1, 1_000_000)),
            "queueing_strategy": st.sampled_from(("best_effort_fifo", "strict_fifo")),
            "stop_policy": st.sampled_from(("none", "hold", "hold_and_drain")),
            "quotas": quotas("parent" in queue),
        }))  # fmt: skip
    return made


def quotas(limited: bool) -> st.SearchStrategy[Any]:
    bounds = {"borrowing_limit": AMOUNTS, "lending_limit": AMOUNTS} if limited else {}
    one = st.fixed_dictionaries(
        {"resource": st.sampled_from(RESOURCES), "nominal": AMOUNTS},
        optional={"flavor": st.sampled_from(("", "h100", "none-such-node")), **bounds},
    )
    return st.lists(one, max_size=4, unique_by=lambda quota: (quota["resource"], quota.get("flavor", "")))


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    tenants = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    more = st.fixed_dictionaries({}, optional={
        "priority_classes": st.sampled_from((
            [{"name": "normal", "value": 0}],
            [{"name": "gold", "value": 1_000_000}, {"name": "low", "value": -1_000_000}],
        )),
        "policy": st.fixed_dictionaries({}, optional={
            "preset": st.sampled_from(("off", "priority", "fair")),
            "placement": st.sampled_from(("tessera", "fgd", "bestfit", "random")),
            "backfill": st.sampled_from(("off", "reserve")),
            "backfill_depth": st.sampled_from((1, 16)),
            "defragment": st.booleans(),
            "idle": st.sampled_from(("off", "warn", "requeue", "fail")),
            "earmark_seconds": st.sampled_from((1, 86_400)),
            "key_memory_seconds": st.sampled_from((1, 31_536_000)),
        }),
        "topology": st.just([{"name": "zone", "label": "topology.kubernetes.io/zone"}]),
    })  # fmt: skip
    flavors = [{"name": "h100", "gpu_models": ["h100"]}, {"name": "none-such-node", "node_labels": {"a": "b"}}]
    grants = st.fixed_dictionaries({}, optional={"priority_classes": st.sampled_from(([], ["normal"]))})
    entries = [{"name": name, **draw(grants)} for name in tenants]
    return {"tenants": entries, "queues": draw(queues()), "flavors": flavors, **draw(more)}


def accepted(body: dict[str, Any]) -> ConfigBody:
    """As admission reads it from the wire; what it refuses is nothing to serve."""
    sent = orjson.dumps({"kind": "apply_config", "v": 1, "expected_version": 0, "body": body})
    parsed = read_operator_command(sent)
    assume(isinstance(parsed.command, ApplyConfig))
    assert isinstance(parsed.command, ApplyConfig)
    assume(not find_config_faults(parsed.command.body))
    return parsed.command.body


@settings(max_examples=150, deadline=None)
@given(bodies())
def test_what_is_accepted_is_decided_by_folded_and_read_by_every_service(raw: dict[str, Any]) -> None:
    body = accepted(raw)
    shard = Committed()
    shard.commit(holder="scheduler-1")
    shard.commit(config_proposed(body), node_seen("node-a"))
    state = shard.state
    assert state.config == Config(version=1, body=body)
    leaves = sorted(chain.from_iterable(state.tree.queues_of.values()))
    jobs = [
        admitted(queue, job_spec(role(gpus=1), name=queue, queue=queue), tenant=body.tenants[0].name)
        for queue in (leaves[0], leaves[-1])
    ]
    shard.commit(*jobs)
    for pool in state.tree.queues_of:
        shard.commit(orders=[shard.line(pool)])
        slots(state, pool)
    _views_are_read(state, body)
    lines = list(snapshot.dump(state))
    assert StateHash().of(snapshot.load(iter(lines))) == StateHash().of(state)


def _views_are_read(state: Any, body: ConfigBody) -> None:
    views = {(change.view, change.key): change.value for change in all_views(state)}
    stored = views["config", "config"]
    assert stored is not None
    read = Config.model_validate_json(stored)
    assert read.body == body
    assert tree_of(read) is not None
    templates_of(read)
    rows = [QueueView.from_bytes(value) for (view, _), value in views.items() if view == "queues" and value]
    nodes = [NodeView.from_bytes(value) for (view, _), value in views.items() if view == "nodes" and value]
    assert len(queue_rows(rows, nodes)) == len(body.queues)
    assert len(quota_rows(rows)) == sum(len(queue.quotas) for queue in body.queues)
    for queue in rows:
        assert all(abs(number) <= INT_MAX for use in queue.quotas for number in (use.used, use.lent, use.available))
    Quotas().configure(body, {})


@settings(max_examples=150, deadline=None)
@given(bodies())
def test_what_is_shown_of_a_configuration_says_the_same_when_it_is_applied(raw: dict[str, Any]) -> None:
    body = accepted(raw)
    said = explicit(body)
    assert filled(said) == (said, ())
    assert applying.read_file(said, "shown").body == body
    assert applying.read_file(files.parse_yaml(applying.shown(body), "shown"), "shown").body == body


@settings(max_examples=100, deadline=None)
@given(bodies())
def test_a_file_that_was_filled_once_is_filled_for_good(raw: dict[str, Any]) -> None:
    made, _ = filled(raw)
    assert filled(made) == (made, ())
