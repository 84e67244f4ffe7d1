"""
`tessera doctor`: what keeps work from starting and that no pod can say itself, each in a line with the way out.

Read only, with the rights of whoever asks: the servers by what they say of themselves, Kubernetes by the kubeconfig.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Protocol

from tessera.binder.adoption.decide.suspending import is_suspended
from tessera.binder.workloads.reading import text
from tessera.binder.workloads.registry import KINDS, kind_of_object
from tessera.client.cluster.findings import Finding
from tessera.kernel.errors import StartupError, Transient
from tessera.kernel.ports import ApiError
from tessera.kernel.process.preflight import check_redis, check_synced
from tessera.kernel.process.settings import ServiceSettings
from tessera_schemas.base import Json
from tessera_schemas.cluster.cluster_roles import Right
from tessera_schemas.cluster.labels import (
    NAMES_US,
    SCHEDULER_NAME,
    SHARD_LABEL,
    USERS_PODS,
    has_ended,
    ledger_of,
    pods_of_shard,
    shard_of,
)
from tessera_schemas.config import ConfigBody
from tessera_schemas.shard.services import BY_NAME, COMPACT, LAYOUTS, SEPARATE, SPECS

SYSTEM = "tessera-system"
AT_ONCE = 16
CLUSTER_WIDE: dict[str, frozenset[Right]] = {spec.name: spec.cluster_rights() for spec in SPECS if spec.needs_cluster}
"""By service."""
BIND = Right("", "pods/binding", "create")
OF_OWNERS = [right for kind in KINDS if kind.suspend_at for right in kind.rights]
SUSPENSIONS = {Right(right.group, resource, "patch") for right in OF_OWNERS for resource in right.resources}
NO_SUSPENSION = ", so that owners which evictions would end are not preempted and do not borrow"
CHANGE_NODES = Right("", "nodes", "patch")
OF_TENANT: frozenset[Right] = BY_NAME["binder"].tenant_rights()
"""The binder's, in the namespace of each tenant."""


class Rights(Protocol):
    async def may(self, namespace: str, verb: str, resource: str, group: str = "", user: str = "") -> bool: ...


def account(process: str) -> str:
    """Kubernetes user name of the service account of a process, which is called as its service or its layout's part."""
    return f"system:serviceaccount:{SYSTEM}:tessera-{process}"


def processes_of(service: str) -> list[str]:
    """The processes that host a service in the layouts that a chart can have; the one of its own first."""
    layouts = (LAYOUTS[name] for name in (SEPARATE, COMPACT))
    return list(dict.fromkeys(process for layout in layouts for process, of in layout.items() if service in of))


async def lacking(cluster: Rights, process: str, needed: Iterable[Right], namespace: str = "") -> list[Right]:
    """The needed rights that the account of a process lacks, in order. Raises ApiError, Transient."""
    lane, user = asyncio.Semaphore(AT_ONCE), account(process)

    async def has(right: Right) -> bool:
        async with lane:
            return await cluster.may(namespace, right.verb, right.resource, right.group, user)

    wanted = sorted(needed)
    answers = await asyncio.gather(*map(has, wanted))
    return [right for right, there in zip(wanted, answers, strict=True) if not there]


LET_IN = "name it under `tenants` in the values of the chart deploy/helm/tessera, and `helm upgrade`"
ROLES = "`helm upgrade` to the chart of this version"
MAKE_TENANT = "name it under tenants in the configuration and `tessera apply` it"
NO_RIGHTS = "{} has no rights at all"
NOTHING_STARTS = "no pod of this tenant can be made or bound"
OTHER_SHARD = "give all but one of them another shard name: docs/operations.md, another installation"
NAMESPACES_MAX, SAID_MAX = 100, 4


class Reader(Rights, Protocol):
    """Questions that the doctor asks the Kubernetes API."""

    async def list(self, kind: str, label_selector: str = "", field_selector: str = "") -> tuple[list[Json], str]: ...


async def check_servers(settings: ServiceSettings) -> list[Finding]:
    """NATS syncs each write, and Redis evicts nothing."""
    found: list[Finding] = []
    for check in (check_synced, check_redis):
        try:
            await check(settings)
        except StartupError as error:
            what, _, way_out = str(error).partition("; ")
            found.append(Finding(what, way_out or "see docs/operations.md"))
    return found


async def check_cluster(
    cluster: Reader, tenants: Collection[str], shard: str, changes_nodes: Mapping[str, str] | None = None
) -> list[Finding]:
    """
    The API answers; our services have their rights; whoever has work for the shard is let in, and is a tenant.

    Work of another shard is that shard's to judge, unless there is no such shard. `changes_nodes`: the parts of the
    configuration for which the binder changes nodes, each with the chart's value that lets it.
    """
    try:
        pods, _ = await cluster.list("pods", USERS_PODS, NAMES_US)
        nodes, _ = await cluster.list("nodes")
        made, _ = await cluster.list("pods", pods_of_shard(shard), NAMES_US)
        work = waiting_work(pods, await _owners(cluster))
    except ApiError as error:
        return [Finding(f"Kubernetes API: {error}", "use a kubeconfig that may list pods and Jobs")]
    except Transient as error:
        return [Finding(f"Kubernetes API does not answer ({error})", "set KUBECONFIG or TESSERA_CLUSTER_URL")]
    waiting, elsewhere = work.pop(shard, Counter[str]()), _work_without_shard(work, nodes)
    strangers = [
        Finding(f"namespace {name} is no tenant: {describe_waiting(waiting[name])}", MAKE_TENANT)
        for name in sorted(waiting.keys() - set(tenants))
    ]
    rights = await _check_rights(cluster, tenants, waiting, changes_nodes or {})
    return [*find_other_ledgers(made), *elsewhere, *strangers, *rights]


def find_other_ledgers(pods: Sequence[Json]) -> list[Finding]:
    """The finding that bound pods of one shard name several ledgers: installations share a shard name and nodes."""
    bound = [pod for pod in pods if (pod.get("spec") or {}).get("nodeName") and not has_ended(pod)]
    named = Counter(ledger for pod in bound if (ledger := ledger_of(pod)))
    if len(named) < 2:
        return []
    counts = ", ".join(f"{ledger} ({count} pods)" for ledger, count in sorted(named.items())[:SAID_MAX])
    return [Finding(f"pods of this shard were made by {len(named)} installations: ledgers {counts}", OTHER_SHARD)]


async def _owners(cluster: Reader) -> list[Json]:
    """All objects that may wait suspended, without those of kinds that the cluster does not have or show to us."""
    found: list[Json] = []
    for version, kind in chain.from_iterable(each.watched for each in KINDS):
        try:
            listed, _ = await cluster.list(f"{version}/{kind}")
        except ApiError:
            if kind == "Job":
                raise
            continue
        found += [{**each, "apiVersion": version, "kind": kind} for each in listed]
    return found


def waiting_work(pods: Sequence[Json], owners: Sequence[Json] = ()) -> dict[str, Counter[str]]:
    """The number of unbound pods and suspended Jobs and the like that name our scheduler, by shard and namespace."""
    waiting = [(pod, shard_of(pod)) for pod in pods if not (pod.get("spec") or {}).get("nodeName")]
    waiting += [(owner, named) for owner in owners if (named := _shard_it_waits_for(owner))]
    found: dict[str, Counter[str]] = {}
    for each, named in waiting:
        if "deletionTimestamp" not in each["metadata"]:
            found.setdefault(named, Counter())[each["metadata"]["namespace"]] += 1
    return found


def _work_without_shard(work: Mapping[str, Counter[str]], nodes: Sequence[Json]) -> list[Finding]:
    """Findings about work for a shard that has no node, of a cluster that has nodes: nobody watches it."""
    found = []
    for named in sorted(work.keys() - {shard_of(node) for node in nodes}) if nodes else ():
        where = f"of {describe_some(sorted(work[named]))}"
        what = f"no node is of shard {named} (label {SHARD_LABEL}): {describe_waiting(work[named].total())}, {where}"
        found.append(Finding(what, "correct the label on the pods or the pod template, or put it on the shard's nodes"))
    return found


def describe_waiting(count: int) -> str:
    """Words for how many pods and suspended Jobs that name Tessera wait."""
    one, more = "1 pod or suspended Job that names tessera waits", "pods or suspended Jobs that name tessera wait"
    return one if count == 1 else f"{count} {more}"


def _shard_it_waits_for(owner: Json) -> str | None:
    """The shard of a suspended owner whose pods name our scheduler; None: it does not wait for us."""
    kind = kind_of_object(owner)
    sets = () if kind is None or not is_suspended(owner) else kind.pod_sets(owner)
    ours = [each.template for each in sets if text(each.template, "spec", "schedulerName") == SCHEDULER_NAME]
    return shard_of(ours[0]) if ours else None


async def _check_rights(
    cluster: Reader, tenants: Collection[str], waiting: Counter[str], changes_nodes: Mapping[str, str]
) -> list[Finding]:
    try:
        found = [each for service in CLUSTER_WIDE for each in await _check_service(cluster, service)]
        if any(finding.what.startswith(NO_RIGHTS.format(account("binder"))) for finding in found):
            return found
        found += await _check_nodes(cluster, changes_nodes)
        return [*found, *await _check_namespaces(cluster, sorted({*tenants, *waiting})[:NAMESPACES_MAX], waiting)]
    except ApiError as error:
        if error.status == 404:  # the simulated cluster knows no rights
            return []
        return [Finding(f"Kubernetes API: {error}", "use a kubeconfig that may create subjectaccessreviews")]
    except Transient as error:
        return [Finding(f"Kubernetes API does not answer ({error})", "try again")]


async def _lacking_in_force(cluster: Reader, service: str, needed: Iterable[Right]) -> list[Right]:
    """The needed rights in the whole cluster that a service lacks in the layout in force."""
    # An account that is not there has no rights: the one that has most is that of the layout in force.
    return min([await lacking(cluster, process, needed) for process in processes_of(service)], key=len)


async def _check_service(cluster: Reader, service: str) -> list[Finding]:
    """Findings about a service's rights in the whole cluster, which the account of its process has."""
    lacks = await _lacking_in_force(cluster, service, CLUSTER_WIDE[service])
    if not lacks:
        return []
    if len(lacks) == len(CLUSTER_WIDE[service]):
        return [Finding(NO_RIGHTS.format(account(service)), f"{ROLES}; no other account is looked at")]
    return [Finding(f"{service} may not {_describe(lacks)} in the cluster", ROLES)]


def parts_that_change_nodes(body: ConfigBody) -> dict[str, str]:
    """Parts of a configuration for which the binder changes nodes, each with the chart's value that gives the right."""
    cut = {f"mig_changes of pool {pool.name}": "migChanges: true" for pool in body.pools if pool.mig_changes}
    return cut | ({} if body.fencing is None else {"fencing": "fencing.enabled: true"})


async def _check_nodes(cluster: Reader, parts: Mapping[str, str]) -> list[Finding]:
    """The finding that the binder may not change nodes, where the configuration asks for what it does by that."""
    if not parts or not await _lacking_in_force(cluster, "binder", [CHANGE_NODES]):
        return []
    what = f"binder may not {CHANGE_NODES} in the cluster, as {describe_some(list(parts))} of the configuration needs"
    values = ", ".join(dict.fromkeys(parts.values()))
    return [Finding(what, f"say {values} in the values of the chart deploy/helm/tessera, and `helm upgrade`")]


async def _check_namespaces(cluster: Reader, names: Sequence[str], waiting: Counter[str]) -> list[Finding]:
    """
    Findings by namespace: where the binder may not bind it has no access; where it may, an older role lacks rights.
    """
    found: list[Finding] = []
    by_lack: dict[tuple[Right, ...], list[str]] = {}
    for name in names:
        lacks = await lacking(cluster, "binder", OF_TENANT, name)
        if BIND in lacks:
            stuck = f"{describe_waiting(waiting[name])}, and no condition on them says why"
            detail = stuck if waiting[name] else NOTHING_STARTS
            found.append(Finding(f"namespace {name} is not let in: {detail}", LET_IN))
        elif lacks:
            by_lack.setdefault(tuple(lacks), []).append(name)
    for rights, where in by_lack.items():
        what = f"binder may not {_describe(rights)} in {describe_some(where)}"
        found.append(Finding(what + (NO_SUSPENSION if SUSPENSIONS.intersection(rights) else ""), ROLES))
    return found


def _describe(rights: Sequence[Right]) -> str:
    return describe_some([str(right) for right in rights])


def describe_some(words: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = len(words) - SAID_MAX
    return ", ".join(words[:SAID_MAX]) + (f" and {more} more" if more > 0 else "")
