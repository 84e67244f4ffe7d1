"""Whether a run, or a pod of it that is released by itself, is absent, from what the cluster shows. Pure."""

from collections.abc import Container, Iterable
from enum import Enum

from tessera.domain.entities import Run, SurplusPod
from tessera.domain.last_words import ASKS, word_of
from tessera.domain.work.starting import find_awaited
from tessera.domain.work.stops import may_end_instead
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import (
    RANK_LABEL,
    RUN_ANNOTATION,
    RUN_LABEL,
    has_ended,
    has_succeeded,
    is_given_back,
)
from tessera_schemas.work.run_ends import Word, end_of
from tessera_schemas.work.run_steps import RunSteps


class PresenceVerdict(Enum):
    """ASK: only a fresh list can tell, since a pod that is not in the cache may be one that it has not seen yet."""

    PRESENT = "present"
    ASK = "ask"
    ABSENT = "absent"


def judge(run: Run, cached: Iterable[Json], gone: Container[str] = ()) -> PresenceVerdict:
    """
    Judge by the cache whether a run that ended or was revoked is absent; `gone` are UIDs of pods seen to disappear.

    Terminal phases never change back, no UID comes back, and the permit names every pod that could ever have been
    bound: when each of them is over here, no list can show anything else.
    """
    pods = list(cached)
    over = {pod["metadata"]["uid"] for pod in pods if is_over(run, pod)}
    over |= {uid for uid in run.permitted if uid in gone}
    return _judge(run.permitted if run.uids else (), pods, over)


def has_unsaid_end(run: Run, cached: Iterable[Json]) -> bool:
    """
    Whether a revoked run ended by itself before anything of it was stopped, which the ledger has yet to hear.

    The binder says how. Until then the run is not released: its job would start again, or end otherwise.
    """
    if run.revoked is None or not run.uids or not may_end_instead(run):
        return False
    by_uid = {pod["metadata"]["uid"]: pod for pod in cached}
    away = {*run.released_ranks, *find_awaited(run)}
    pods = [by_uid.get(uid, {}) for rank, uid in enumerate(run.uids) if uid in by_uid or rank not in away]
    if not all(has_ended(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods):
        return False
    end = end_of(run.revoked.code)
    return all(has_succeeded(pod) for pod in pods) or (end.notice and not end.learns)


def steps_of(run: Run, cached: Iterable[Json]) -> RunSteps | None:
    """
    Steps of which the first pod of a stopped run told; None where it told none.

    The binder tells of those of a run that ended by its pods' end, or as its script asked.
    """
    code = None if run.revoked is None else run.revoked.code
    if code is None or code in ASKS.values() or end_of(code).word is Word.ENDED or not run.uids:
        return None
    first = next((pod for pod in cached if pod["metadata"]["uid"] == run.uids[0]), {})
    word = word_of(first) if first else None
    return None if word is None else word.steps


def is_over(run: Run, pod: Json) -> bool:
    """Whether nothing of the pod can hold anything of the run any more; for a pod given back no bind can succeed."""
    is_bound = (pod.get("spec") or {}).get("nodeName")
    return has_ended(pod) or (not is_bound and is_given_back(pod, run.allocated_ts))


def ended_ranks(
    run: Run, cached: Iterable[Json], gone: Container[str] = (), left: Container[str] = ()
) -> tuple[int, ...]:
    """
    The ranks that are released by themselves now, ascending: of their pods nothing is left, as the cache shows.

    While the run goes on these are the pods that succeeded, and those that have ended of `left`, by UID, without which
    their owner goes on. Any other end of a pod is the end of the run: then that is
    said first, and the pods follow one by one. The last are released with the run: most runs need one record.
    `gone` are UIDs that were seen to go, and had succeeded or are of a run that is being stopped.
    """
    releasable = run.releasable if len(run.placements) + len(run.extra) > 1 else set()
    if not releasable:
        return ()
    pods = list(cached)
    by_any_end = [pod for pod in pods if run.stopping or pod["metadata"]["uid"] in left]
    over = {pod["metadata"]["uid"] for pod in pods if has_succeeded(pod)}
    over |= {pod["metadata"]["uid"] for pod in by_any_end if is_over(run, pod)}
    alive = {(pod["metadata"].get("labels") or {}).get(RANK_LABEL) for pod in pods if not is_over(run, pod)}
    shown = {pod["metadata"]["uid"] for pod in pods}
    over |= {uid for uid in run.permitted if uid in gone and uid not in shown}
    permits = dict(enumerate(run.uids)) | {extra.placement.rank: extra.uid for extra in run.extra}
    ended = tuple(rank for rank in sorted(releasable) if permits[rank] in over and str(rank) not in alive)
    return ended if len(ended) < len(run.places) else ()


def claims_devices(run: Run) -> bool:
    """Tells whether a pod of the run has devices by claims, which outlive its object for a moment."""
    return any(placement.drawn for placement in run.places)


def uids_in_use(run: Run, claims: Iterable[Json]) -> set[str]:
    """
    UIDs of the run's pods for which devices of these claims are allocated, and may still be prepared on a node.

    Others may use a claim after the pod that it was allocated with: the ledger has its devices with that pod.
    """
    permits = dict(enumerate(run.uids)) | {extra.placement.rank: extra.uid for extra in run.extra}
    drawn = {device.id: permits.get(place.rank, "") for place in run.places for device in place.drawn}
    in_use = set[str]()
    for claim in claims:
        status, meta = claim.get("status") or {}, claim.get("metadata") or {}
        if allocation := status.get("allocation"):
            in_use |= {user.get("uid", "") for user in status.get("reservedFor") or ()}
            marks = {**(meta.get("labels") or {}), **(meta.get("annotations") or {})}
            if run.run_id in (marks.get(RUN_LABEL), marks.get(RUN_ANNOTATION)):
                results = (allocation.get("devices") or {}).get("results") or ()
                in_use |= {drawn.get(name, "") for name in map(_device_id, results)}
    return in_use.intersection(run.permitted)


def _device_id(result: Json) -> str:
    return "/".join(str(result.get(part)) for part in ("driver", "pool", "device"))


def judge_surplus_pod(extra: SurplusPod, cached: Iterable[Json]) -> PresenceVerdict:
    """The same of one pod by which a run had grown, and which is to leave; `cached` are all of the run."""
    pods = select_pods_of_rank(extra, cached)
    return _judge((extra.uid,) if extra.uid else (), pods, {pod["metadata"]["uid"] for pod in pods if has_ended(pod)})


def select_pods_of_rank(extra: SurplusPod, pods: Iterable[Json]) -> list[Json]:
    """Pods with the rank of one surplus pod."""
    rank = str(extra.placement.rank)
    return [pod for pod in pods if pod["metadata"]["labels"].get(RANK_LABEL) == rank]


def _judge(permitted: Iterable[str], pods: list[Json], over: set[str]) -> PresenceVerdict:
    if any(pod["metadata"]["uid"] not in over for pod in pods):
        return PresenceVerdict.PRESENT
    uids = set(permitted)
    return PresenceVerdict.ABSENT if uids and over >= uids else PresenceVerdict.ASK
