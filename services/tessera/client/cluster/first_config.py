"""
A first configuration for the cluster that is there, as a commented file that `tessera apply` takes as it stands.

From the nodes as the views have them: their pools, whose GPUs are nominal quota, device profiles, models as flavors,
and their topology labels. From `tessera_schemas.shard.recommended` the policy, with what each value costs.
Pure; the same nodes in any order give the same text.
"""

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tessera_schemas.cluster.health import HealthPolicy
from tessera_schemas.cluster.labels import GPU_RESOURCE, tells_condition
from tessera_schemas.config import FLAVORS_MAX, Limits, Policy
from tessera_schemas.job import LEVELS_MAX
from tessera_schemas.shard.recommended import GRANTED, POLICY
from tessera_schemas.views import NodeView

WIDTH = 100
NAME_LENGTH_MAX = 63
DEFAULT_POOL = DEFAULT_QUEUE = "default"
ROOT = "everyone"
HINT = "#+"
"""Begins a line of YAML that the reader may take in as it stands, all of them together."""
FABRIC_TIER = re.compile(r"fabric\.topograph\.run/tier-([0-9]{1,3})")
"""A tier of switches as NVIDIA's Topograph writes it; that of the switch next to the node has number 0."""
NVLINK_LABELS = (
    "nvidia.com/gpu.clique",
    "accelerator.topograph.run/domain",
    "network.topology.nvidia.com/accelerator",
)
"""Three labels of one thing, a domain of NVLink; the first that nodes carry is taken."""
LEVEL_LABELS = (
    *("region", "zone", "superpod", "network.topology.nvidia.com/core", "spine", "block", "subblock", "row", "leaf"),
    *("rail", "rack"),
    *(f"topology.k8s.aws/network-node-layer-{layer}" for layer in (1, 2, 3)),
    *("cloud.google.com/gce-topology-block", "cloud.google.com/gce-topology-subblock"),
    *(FABRIC_TIER.pattern, *NVLINK_LABELS, "accelerator.topograph.run/sub-domain"),
)
"""Labels of topology, by key or by the last word of the key, widest first."""
SAID_LIMITS = {
    "jobs": "that have not ended",
    "submits_per_second": "jobs handed in, lastingly",
    "submits_burst": "jobs handed in at once",
    "bytes_per_second": "of commands, lastingly: the ledger keeps them for good",
    "bytes_burst": "of commands at once",
}
READ_AS_NO_TEXT = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null"])
OTHER_POLICY = (
    "min_runtime_seconds",
    "evictions_max",
    "earmark_seconds",
    "node_lost_seconds",
    "mass_stop_percent",
    "mass_stop_seconds",
    "cordoned_seconds",
    "start_timeout_seconds",
)


@dataclass(frozen=True, slots=True)
class ClusterSurvey:
    """Findings about the cluster that a first configuration is written for."""

    shard: str
    as_of: int
    nodes: tuple[NodeView, ...]
    tenants: tuple[str, ...]

    @property
    def present(self) -> list[NodeView]:
        """Nodes that are not gone, by name."""
        return sorted((node for node in self.nodes if not node.gone), key=lambda node: node.name)

    @property
    def pools(self) -> dict[str, list[NodeView]]:
        """The nodes by pool; the default pool where there are none yet."""
        found: dict[str, list[NodeView]] = {}
        for node in self.present:
            found.setdefault(node.pool, []).append(node)
        return dict(sorted(found.items())) or {DEFAULT_POOL: []}


def first_config(cluster: ClusterSurvey) -> str:
    """The whole file."""
    parts = (_head, _tenants, _queues, _flavors, _pools, _topology, _policy, _health)
    return "\n".join("\n".join(lines) + "\n" for part in parts if (lines := list(part(cluster))))


def _head(cluster: ClusterSurvey) -> Iterator[str]:
    models = _models(cluster.present)
    gpus = ", ".join(f"{count} {model}" for model, count in models.items()) or "no GPUs"
    yield f"# Configuration of shard {cluster.shard}, by `tessera config init` as of ledger record {cluster.as_of},"
    yield f"# for {len(cluster.present)} nodes with {gpus}. Change what you like, then: tessera apply -f FILE"
    yield "# What it leaves out is written out by `apply` with the values below, and shown before you agree."
    yield "# `mounts: [{path: /data, claim: data}]` lets jobs mount /data and what is below it from that claim of"
    yield "# their tenant's namespace, as `--container-mounts` of Slurm's scripts does; nothing is mapped without."
    yield "# `defaults: {time_limit: 1d}` is for jobs that say none; `time_limit_max: 7d` is a queue's longest."


def _health(cluster: ClusterSurvey) -> Iterator[str]:
    yield "# Sick machines: each cause has an action (docs/health.md; `actions: {gpu_throttled: drain}` changes it)."
    yield "# So many percent of a pool's nodes at most are kept out for their health at once. Without this entry"
    yield "# nothing is taken in of what is seen or reported of the nodes' health."
    yield "# `reputation` keeps nodes out on which jobs fail more often than elsewhere."
    yield f"health: {{out_percent: {HealthPolicy().out_percent}, reputation: {{}}}}"


def _tenants(cluster: ClusterSurvey) -> Iterator[str]:
    yield "# Who may submit. On Kubernetes a tenant is the namespace of the same name. Where nodes of one tenant's own"
    yield "# have a taint: `tolerations: [{key: KEY}]` in its entry lets all its jobs onto them (docs/placement.md)."
    yield "tenants:"
    for name in cluster.tenants:
        yield f"  - name: {_quoted(name)}"
        yield "    limits:                        # also gpus, gpus_per_job, time_limit_max, …; docs/limits.md"
        for field, profiles_of in SAID_LIMITS.items():
            yield f"      {field}: {getattr(Limits(), field)}  # {profiles_of}"
        yield f"    priority_classes: [{', '.join(GRANTED)}]  # granted; there are also high and urgent"


def _queues(cluster: ClusterSurvey) -> Iterator[str]:
    pools = cluster.pools
    largest = min(pools, key=lambda pool: (pool != DEFAULT_QUEUE, -_gpus(pools[pool]), pool))
    yield "# Where jobs wait; `default` takes those that name no queue. `gpus` is the nominal quota: all that the"
    yield "# pool has, also when it grows or shrinks; `50%` and plain numbers can be said, too. `cpu` and `memory`"
    yield "# can be given as well, and are not limited otherwise."
    yield from _own_queues(cluster, largest)
    for pool, nodes in pools.items():
        yield f"  - name: {_quoted(DEFAULT_QUEUE if pool == largest else pool)}"
        yield f"    pool: {_quoted(pool)}"
        if pool == largest and len(cluster.tenants) > 1:
            yield f"{HINT}    parent: {_free(ROOT, cluster)}"
        yield f"    tenants: [{', '.join(map(_quoted, cluster.tenants))}]"
        if _gpus(nodes):
            yield "    quotas: {gpus: all}"
        else:
            yield "    # quotas: {gpus: all}           # the pool has no GPUs now: nothing is limited"


def _own_queues(cluster: ClusterSurvey, largest: str) -> Iterator[str]:
    """The list's head; for several tenants also lines to take in, which put a queue of each beside `default`."""
    if len(cluster.tenants) < 2:
        yield "queues:"
        return
    pool, root = _quoted(largest), _free(ROOT, cluster)
    yield "# Its tenants share a queue by fair share. To give each a queue of its own, take away each `#+` below: jobs"
    yield "# of `default` stay there, and all these queues lend each other what they do not use. What you promise"
    yield "# one, as `gpus: 30%`, take from `default`: together they have no more than the pool (docs/queues.md)."
    yield "queues:"
    yield f"{HINT}  - {{name: {root}, pool: {pool}}}  # takes no jobs itself"
    nothing = ", quotas: {gpus: 0}" if _gpus(cluster.pools[largest]) else ""
    for tenant in cluster.tenants:
        name = _free(f"{_name(tenant)[:58]}-jobs", cluster)
        of_tenant = f"name: {name}, pool: {pool}, parent: {root}, tenants: [{_quoted(tenant)}]"
        yield f"{HINT}  - {{{of_tenant}{nothing}}}"


def _free(name: str, cluster: ClusterSurvey) -> str:
    """The name, or one like it that no queue of the file has: each pool's is called as the pool."""
    taken = {DEFAULT_QUEUE, *cluster.pools}
    return next(free for free in (name, *(f"{name[:58]}-{n}" for n in range(2, len(taken) + 3))) if free not in taken)


def _gpus(nodes: Sequence[NodeView]) -> int:
    return sum(node.gpus for node in nodes)


def _flavors(cluster: ClusterSurvey) -> Iterator[str]:
    models = _models(cluster.present)
    most = sorted(models, key=lambda model: (-models[model], model))[:FLAVORS_MAX]
    names = _flavor_names(sorted(most))
    if not names:
        return
    yield "# Kinds of nodes that quotas can tell apart. No quota names one yet: a quota by flavor keeps each job on"
    yield "# nodes of one flavor, and then every flavor that the queue may use needs a quota, such as"
    yield f"#   quotas: [{{resource: gpu_milli, nominal: 8000, flavor: {next(iter(names.values()))}}}]"
    yield "flavors:"
    if len(models) > len(names):
        yield f"# Of {len(models)} models those with the most GPUs: there are at most {FLAVORS_MAX} flavors."
    for model, name in names.items():
        yield f"  - {{name: {_quoted(name)}, gpu_models: [{_quoted(model)}]}}"


def _pools(cluster: ClusterSurvey) -> Iterator[str]:
    profiles_of = {pool: {node.device_profile for node in nodes} for pool, nodes in cluster.pools.items()}
    said = {
        pool: [f"device_profile: {next(iter(profiles))}"] if len(profiles) == 1 else []
        for pool, profiles in profiles_of.items()
    }
    for pool, nodes in cluster.pools.items():
        kinds = {node.gpu_resource or GPU_RESOURCE for node in nodes if node.gpus}
        said[pool] += [f"gpu_resource: {_quoted(*kinds)}"] if len(kinds) == 1 and kinds != {GPU_RESOURCE} else []
        taints = _common_taints(nodes)
        said[pool] += [f"tolerations: [{', '.join(map(_toleration, taints))}]"] if taints else []
    if not any(said.values()):
        return
    yield "# Who hands out the GPUs (docs/kubernetes-devices.md). A node that says another profile takes nothing new."
    if any(node.gpu_resource for node in cluster.present):
        yield "# `gpu_resource`: the GPUs of jobs there that name neither such a resource nor a model; else NVIDIA's."
    if any(_common_taints(nodes) for nodes in cluster.pools.values()):
        yield "# `tolerations`: taints that all nodes of the pool have; every job's pods there bear them."
    yield "pools:"
    for pool, parts in said.items():
        if parts:
            yield f"  - {{{', '.join((f'name: {_quoted(pool)}', *parts))}}}"


def _common_taints(nodes: Sequence[NodeView]) -> list[tuple[str, str, str]]:
    """Taints of all of these nodes that keep pods away for good; passing conditions are left out."""
    common = set[tuple[str, str, str]].intersection(*(set(node.taints) for node in nodes)) if nodes else set()
    return sorted(taint for taint in common if taint[2] != "PreferNoSchedule" and not tells_condition(taint[0]))


def _toleration(taint: tuple[str, str, str]) -> str:
    key, value, effect = taint
    said = f"value: {_quoted(value)}" if value else "operator: Equal"
    return f"{{key: {_quoted(key)}, {said}, effect: {effect}}}"


def _topology(cluster: ClusterSurvey) -> Iterator[str]:
    labels = _levels(cluster.present)
    if not labels:
        return
    yield "# Levels that jobs may name in `topology` and `spread`, widest first."
    yield "topology:"
    taken: set[str] = set()
    for label in labels:
        name = next(name for name in _level_names(label) if name not in taken)
        taken.add(name)
        yield f"  - {{name: {_quoted(name)}, label: {_quoted(label)}}}"


def _policy(cluster: ClusterSurvey) -> Iterator[str]:
    yield "# How the shard decides; docs/policy.md has what was measured."
    yield "policy:"
    for found in POLICY:
        yield from _comment(f"Brings: {found.brings}.")
        yield from _comment(f"Costs: {found.costs}.")
        yield f"  {found.field}: {_yaml(found.value)}"
    yield from _comment("Further ones, as they are:")
    for name in OTHER_POLICY:
        yield from _comment(f"{name}: {_yaml(getattr(Policy(), name))}  {Policy.model_fields[name].description}")


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  # ", subsequent_indent="  #   ", break_long_words=False)


def _models(nodes: Sequence[NodeView]) -> dict[str, int]:
    """GPUs by model; a node that does not say its model counts for none."""
    found: Counter[str] = Counter()
    for node in nodes:
        if node.gpus and node.gpu_model:
            found[node.gpu_model] += node.gpus
    return dict(sorted(found.items()))


def _levels(nodes: Sequence[NodeView]) -> list[str]:
    """
    The known topology labels that nodes carry, widest first.

    Of too many those make way that have one value on all nodes, then the widest: gangs gain most by the narrow ones.
    """
    values: dict[str, set[str]] = {}
    for node in nodes:
        for key, value in node.labels.items():
            values.setdefault(key, set()).add(value)
    nvlink = next((key for key in NVLINK_LABELS if key in values), None)
    known = sorted(
        (key for key in values if _is_level(key) and (key not in NVLINK_LABELS or key == nvlink)), key=_width
    )
    if len(known) > LEVELS_MAX:
        known = [key for key in known if len(values[key]) > 1][-LEVELS_MAX:] or known[-LEVELS_MAX:]
    return known


def _is_level(key: str) -> bool:
    return bool(FABRIC_TIER.fullmatch(key)) or key in LEVEL_LABELS or key.rpartition("/")[2] in LEVEL_LABELS


def _width(key: str) -> tuple[int, int, str]:
    """Place of a level's label in the order from the widest on."""
    tier = FABRIC_TIER.fullmatch(key)
    if tier is not None:
        return LEVEL_LABELS.index(FABRIC_TIER.pattern), -int(tier[1]), key
    return LEVEL_LABELS.index(key if key in LEVEL_LABELS else key.rpartition("/")[2]), 0, key


def _level_names(label: str) -> Iterator[str]:
    short = _name(label.rpartition("/")[2])
    yield from (short, _name(label), *(f"{short[:50]}-{number}" for number in range(2, LEVELS_MAX + 2)))


def _flavor_names(models: Sequence[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for model in models:
        short = _name(model)
        free = [short, *(f"{short[:50]}-{number}" for number in range(2, len(models) + 2))]
        names[model] = next(name for name in free if name not in names.values())
    return names


def _name(text: str) -> str:
    """The text as a name: small letters, digits and dashes."""
    made = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:NAME_LENGTH_MAX].strip("-")
    return made or "x"


def _quoted(text: str) -> str:
    """A plain word as it is; what YAML would read as something else than text in quotes."""
    plain = re.fullmatch(r"[a-z][A-Za-z0-9./_-]*", text) and text not in READ_AS_NO_TEXT
    return text if plain else f'"{text}"'


def _yaml(value: str | bool | int) -> str:
    return _quoted(value) if isinstance(value, str) else str(value).lower()
