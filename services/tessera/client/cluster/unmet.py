"""
Names of a configuration that nothing has: a queue's pool without nodes, a flavor that matches no node, a type of event;
and pools that are to spare all of their nodes.

In: a configuration and the nodes as the views have them. Out: a warning each, with what is meant perhaps. They stop
nothing: nodes may come later. While no node is known at all, nothing is said. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

from tessera_schemas.config import ConfigBody, Flavor
from tessera_schemas.events import short_type, short_types
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.views import NodeView

SAID_MAX = 4


def find_unmet(body: ConfigBody, nodes: Iterable[NodeView]) -> list[Reason]:
    """A warning for each name that meets nothing, in the order of the configuration."""
    present = [node for node in nodes if not node.gone]
    of_nodes = [*_pools(body, present), *_flavors(body, present), *_levels(body, present)] if present else []
    return [*_filters(body), *of_nodes]


def _filters(body: ConfigBody) -> Iterator[Reason]:
    """Types of events that there are not, and queues that there are not: nothing ever comes of them."""
    types, queues = short_types(), sorted(queue.name for queue in body.queues)
    for tenant in body.tenants:
        named: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
            (f"tenants.{tenant.name}.subscribers.{each.name}", each.types, ()) for each in tenant.subscribers
        ]
        named += [(f"tenants.{tenant.name}.webhooks.{each.name}", each.types, each.queues) for each in tenant.webhooks]
        for at, asked, of_queues in named:
            for kind in asked:
                if short_type(kind) not in types:
                    yield _unmet(f"{at}.types", f"no event is of type {kind}; {_hint(short_type(kind), types)}")
            for queue in of_queues:
                if queue not in queues:
                    yield _unmet(f"{at}.queues", f"there is no queue {queue}; {_hint(queue, queues)}")


def _pools(body: ConfigBody, nodes: Sequence[NodeView]) -> Iterator[Reason]:
    there = sorted({node.pool for node in nodes})
    inner = {queue.parent for queue in body.queues}
    for queue in body.queues:
        if queue.pool not in there and queue.name not in inner:
            detail = f"no node is in pool {queue.pool}, and nothing of the queue starts; {_hint(queue.pool, there)}"
            yield _unmet(f"queues.{queue.name}.pool", detail)
    for pool in body.pools:
        if pool.name not in there:
            yield _unmet(f"pools.{pool.name}", f"no node is in this pool; {_hint(pool.name, there)}")
        elif (count := sum(node.pool == pool.name for node in nodes)) <= pool.spare_nodes:
            detail = f"the pool has {count} nodes: while they are empty all of them are spares, and nothing starts"
            yield _unmet(f"pools.{pool.name}.spare_nodes", detail)


def _flavors(body: ConfigBody, nodes: Sequence[NodeView]) -> Iterator[Reason]:
    models = sorted({node.gpu_model for node in nodes if node.gpu_model})
    for flavor in body.flavors:
        if any(_matches(flavor, node) for node in nodes):
            continue
        at, missing = f"flavors.{flavor.name}", [model for model in flavor.gpu_models if model not in models]
        labels = [f"{key}={value}" for key, value in flavor.node_labels.items() if not _carried(key, value, nodes)]
        said = [f"no node has {model} GPUs; {_hint(model, models)}" for model in missing]
        said += [f"no node has the label {label}" for label in labels]
        detail = "; ".join(said[:SAID_MAX]) or "no node has all of this"
        yield _unmet(at, f"{detail}; quotas of this flavor bound nothing")


def _levels(body: ConfigBody, nodes: Sequence[NodeView]) -> Iterator[Reason]:
    labels = sorted({key for node in nodes for key in node.labels})
    for level in body.topology:
        if level.label not in labels:
            detail = f"no node has the label {level.label}; {_hint(level.label, labels)}"
            yield _unmet(f"topology.{level.name}", detail)


def _matches(flavor: Flavor, node: NodeView) -> bool:
    model = not flavor.gpu_models or node.gpu_model in flavor.gpu_models
    return model and all(node.labels.get(key) == value for key, value in flavor.node_labels.items())


def _carried(key: str, value: str, nodes: Sequence[NodeView]) -> bool:
    return any(node.labels.get(key) == value for node in nodes)


def _hint(name: str, there: Sequence[str]) -> str:
    """The name that is meant perhaps, else the names there are."""
    alike = [known for known in there if known.lower() == name.lower()]
    alike += [known for known in there if name.lower() in known.lower()]
    alike += get_close_matches(name, there, 1)
    if alike:
        return f"is {alike[0]} meant?"
    return (
        f"there are {', '.join(there[:SAID_MAX])}{' and others' if len(there) > SAID_MAX else ''}"
        if there
        else ("there are none")
    )


def _unmet(field: str, detail: str) -> Reason:
    return Reason(code=Code.MEETS_NOTHING, field=field, detail=detail[:1024])
