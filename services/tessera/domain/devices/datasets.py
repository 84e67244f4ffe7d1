"""
Data sets in the caches of nodes: what a node has of them, and what a pod loses where it has to read one anew. Pure.

Nobody has to say where a data set is: a node on which a run used it has read it, and keeps it as a cache does, until
others need the place or it was not used for long. A node may say besides what it has (`told_data`). What reading costs
is judged when a job is taken in: a pod whose GPUs stand idle for the first part of its run is worth that part of its
GPUs, in the unit of fragmentation. What the fold learns of nodes stands below.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from tessera.domain.devices.resources import WHOLE_GPU, KeptData, Need, Node, ReadData, RoleNeed
from tessera.domain.entities import Run
from tessera.domain.runtimes import JobKind, expected
from tessera.domain.state import NEVER, State
from tessera.domain.storing.fast import replace
from tessera.domain.work.gang import Gang, gang_of
from tessera_schemas.cluster.devices import EVERY_TENANT
from tessera_schemas.cluster.node_terms import ToldPlaces
from tessera_schemas.cluster.pools import DataCaches
from tessera_schemas.job import DatasetHint, JobSpec

MILLIONTHS = 1_000_000
LEAST_GPU_MILLI = 100
"""Thousandths of a GPU that a pod without GPUs counts as: it goes to its data where nothing speaks against that."""
SWEEP_MS = 3_600_000
"""Between two looks through all that nodes keep, at full hours."""


def dataset_key(tenant: str, name: str) -> str:
    """Name of a tenant's data set within the shard; tenants may use one name for different data."""
    return f"{tenant}/{name}"


def split_key(key: str) -> tuple[str, str]:
    """Tenant and name of a data set, of its name within the shard."""
    tenant, _, name = key.partition("/")
    return tenant, name


def reading(
    roles: Sequence[RoleNeed], datasets: Iterable[DatasetHint], tenant: str, caches: DataCaches, run_ms: int
) -> tuple[RoleNeed, ...]:
    """The roles, each pod of which reads the data sets; a run is expected to take `run_ms` besides."""
    sizes = {dataset_key(tenant, each.name): each.size_bytes for each in datasets}
    if not sizes or not caches.read_bytes_per_second:
        return tuple(roles)
    found = list[RoleNeed]()
    for role in roles:
        data = tuple((key, size, _cost(role.need, size, caches, run_ms)) for key, size in sorted(sizes.items()))
        found.append(replace(role, need=replace(role.need, data=data)))
    return tuple(found)


def _cost(need: Need, size_bytes: int, caches: DataCaches, run_ms: int) -> int:
    """Millionths of a GPU that a pod loses by reading, in two significant bits."""
    read_ms = size_bytes * 1000 // caches.read_bytes_per_second
    gpu_milli = max(need.total_gpu_milli, LEAST_GPU_MILLI)
    cost = MILLIONTHS * gpu_milli * read_ms // (WHOLE_GPU * max(1, read_ms + run_ms))
    # Expected times differ from job to job by little; without rounding hardly two jobs would share an order of nodes.
    drop = max(0, cost.bit_length() - 2)
    return cost >> drop << drop


def cost_of_reading(need: Need, node: Node) -> int:
    """Millionths of a GPU that the pod loses by reading what the node does not have."""
    return sum(cost for key, _, cost in need.data if not _has(node, key))


def bytes_read(needs: Iterable[Need], node: Node) -> tuple[int, int]:
    """Bytes of the data sets of pods on one node that it has, and that it reads; each counts once."""
    sizes = {key: size for need in needs for key, size, _ in need.data}
    near = sum(size for key, size in sizes.items() if _has(node, key))
    return near, sum(sizes.values()) - near


def nodes_with_data(nodes: Iterable[Node], needs: Iterable[Need]) -> dict[tuple[str, int], list[str]]:
    """Nodes that have each data set of the pods, by its name and size, both in order."""
    wanted = sorted({(key, size) for need in needs for key, size, _ in need.data})
    there = sorted((node for node in nodes if node.kept_data or node.told_data), key=attrgetter("name"))
    return {(split_key(key)[1], size): [node.name for node in there if _has(node, key)] for key, size in wanted}


def _has(node: Node, key: str) -> bool:
    return any(each[0] == key for each in node.kept_data) or (bool(node.told_data) and _says(node, key))


def _says(node: Node, key: str) -> bool:
    """Whether the node says itself that it has the data set, the tenant's own or one for all tenants."""
    return key in node.told_data or dataset_key(EVERY_TENANT, split_key(key)[1]) in node.told_data


def keeping(node: Node, used: Iterable[ReadData], ts: int, most_bytes: int) -> Node:
    """The node after pods used these data sets: of more than `most_bytes` those go first that were used longest ago."""
    now = {key: (key, size, ts) for key, size, _ in used}
    kept = [*now.values(), *(each for each in node.kept_data if each[0] not in now)]
    left, found = most_bytes, list[KeptData]()
    for key, size, used_ts in sorted(kept, key=lambda each: (-each[2], each[0])):
        if size <= left:
            left -= size
            found.append((key, size, used_ts))
    return _with(node, found)


def forgetting(node: Node, ts: int, caches: DataCaches) -> Node:
    """The node without what was not used for too long."""
    return _with(node, [each for each in node.kept_data if each[2] + caches.kept_seconds * 1000 > ts])


def _with(node: Node, kept: Iterable[KeptData]) -> Node:
    found = tuple(sorted(kept))
    return node if found == node.kept_data else replace(node, kept_data=found)


def read_together(reads: Iterable[tuple[ReadData, ...]]) -> tuple[ReadData, ...]:
    """Data sets of pods that go to one node together: each is read once, while all of their GPUs wait for it."""
    found = dict[str, tuple[int, int]]()
    for key, size, cost in (each for of_pod in reads for each in of_pod):
        before = found.get(key, (0, 0))
        found[key] = max(size, before[0]), cost + before[1]
    return tuple((key, *amounts) for key, amounts in sorted(found.items()))


def with_data(state: State, gang: Gang, spec: JobSpec, tenant: str) -> Gang:
    """The gang, whose pods read the job's data sets, beside the time that such jobs were seen to take."""
    if not spec.datasets:
        return gang
    kind = JobKind(tenant, spec.queue, spec.name, -(-gang.amount.gpu_milli // WHOLE_GPU))
    run_ms = expected(state.runtimes, kind)
    if spec.time_limit_seconds:
        run_ms = min(run_ms, spec.time_limit_seconds * 1000)
    return gang_of(reading(gang, spec.datasets, tenant, state.tree.policy.data_caches, run_ms))


def count_data(state: State, run: Run) -> Run:
    """The run with the bytes of its data sets that its nodes have, and that they do not have yet."""
    near = far = 0
    for nodes, needs in _needs_by_cache(state, run):
        there, missing = bytes_read(needs, nodes[0])
        near, far = near + there, far + missing
    return replace(run, near_bytes=near, far_bytes=far) if near or far else run


def keep_data(state: State, run: Run) -> None:
    """Notes on the nodes of a run that started, or ends, that its data sets were used there just now."""
    caches = state.tree.policy.data_caches
    for nodes, needs in _needs_by_cache(state, run):
        used = [each for need in needs for each in need.data]
        # What one node has all nodes of its domain have: so each is scored and told by itself alone.
        sharing = _sharing(state, nodes[0])
        for node in sharing:
            state.put_node(keeping(node, used, state.ts, caches.node_bytes * len(sharing)))
        state.data_due = min(state.data_due, _last_look(state) + SWEEP_MS)


def told_nodes(state: State, tenant: str, dataset: str, places: ToldPlaces) -> tuple[Node, ...]:
    """
    Nodes as they are once a tenant has said where its data set is, by name: those alone of which that is news.

    Nodes of pools that the tenant has no queue in stay out. What is told again within an hour is none.
    """
    key, caches, pools = dataset_key(tenant, dataset), state.tree.policy.data_caches, _pools_of(state, tenant)
    found = dict[str, Node]()
    for name in (*places.gone, *places.nodes):
        node = state.nodes.get(name)
        if node is None or node.gone or node.pool not in pools:
            continue
        sharing = _sharing(state, node)
        for one in sharing:
            before = found.get(one.name, one)
            kept = [each for each in before.kept_data if each[0] != key]
            if name in places.nodes:
                kept = _with_told(kept, (key, places.size_bytes, state.ts), caches.node_bytes * len(sharing))
            found[one.name] = _with(before, kept)
    return tuple(found[name] for name in sorted(found) if _is_news(state, found[name], key))


def _with_told(kept: list[KeptData], told: KeptData, most_bytes: int) -> list[KeptData]:
    # Room that a tenant's word takes is the tenant's own: runs of others have read what is there, and words read none.
    tenant = split_key(told[0])[0]
    others = [each for each in kept if split_key(each[0])[0] != tenant]
    left = most_bytes - sum(size for _, size, _ in others)
    for each in sorted({told, *kept} - {*others}, key=lambda each: (-each[2], each[0] != told[0], each[0])):
        if each[1] <= left:
            left -= each[1]
            others.append(each)
    return others


def _is_news(state: State, node: Node, key: str) -> bool:
    before = state.nodes.get(node.name)
    was, now = ({each[0]: each for each in one.kept_data} for one in (before or node, node))
    if was.keys() != now.keys() or key not in now:
        return was.keys() != now.keys()
    return was[key][1] != now[key][1] or now[key][2] - was[key][2] >= SWEEP_MS


def keep_told(state: State, nodes: Iterable[Node]) -> None:
    """Takes nodes of `told_nodes` into the state."""
    for node in nodes:
        state.put_node(node)
        state.data_due = min(state.data_due, _last_look(state) + SWEEP_MS)


def _pools_of(state: State, tenant: str) -> frozenset[str]:
    body = state.config.body
    queues = () if body is None else body.queues
    return frozenset(queue.pool for queue in queues if not queue.tenants or tenant in queue.tenants)


def _sharing(state: State, node: Node) -> list[Node]:
    """The nodes that have what this one has, by name: itself, or all of its domain."""
    label = _cache_label(state)
    domain = node.label(label) if label else None
    if domain is None:
        return [node]
    there = (one for one in state.nodes.values() if one.label(label) == domain and not one.gone)
    return sorted(there, key=attrgetter("name"))


def _cache_label(state: State) -> str:
    """Label of the nodes that read from each other's caches; "" where each has only its own."""
    return state.tree.levels.get(state.tree.policy.data_caches.level or "", "")


def forget_data(state: State) -> None:
    """Forgets what nodes had for too long without a use, and when to look again."""
    caches, left = state.tree.policy.data_caches, False
    for node in [node for node in state.nodes.values() if node.kept_data]:
        now = forgetting(node, _last_look(state), caches)
        left = left or bool(now.kept_data)
        if now is not node:
            state.put_node(now)
    state.data_due = _last_look(state) + SWEEP_MS if left else NEVER


def _last_look(state: State) -> int:
    # By the clock, so that a restored state, which looks at once, forgets no sooner than one that folded all along.
    return state.ts - state.ts % SWEEP_MS


def _needs_by_cache(state: State, run: Run) -> Iterable[tuple[list[Node], list[Need]]]:
    """The run's nodes, and the needs of its pods there: those together that share their caches, else each by itself."""
    if not run.gang.reads_data:
        return []
    label, found = _cache_label(state), dict[tuple[str, str], tuple[dict[str, Node], list[Need]]]()
    for place in run.places:
        if (node := state.nodes.get(place.node)) is not None and not node.gone:
            domain = node.label(label) if label else None
            nodes, needs = found.setdefault((node.name, "") if domain is None else ("", domain), ({}, []))
            nodes[node.name] = node
            needs.append(run.gang.need_of[place.role])
    return [([*nodes.values()], needs) for nodes, needs in found.values()]
