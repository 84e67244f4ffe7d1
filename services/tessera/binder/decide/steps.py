"""
Next steps of the binder for a run, from its state and its pods as the cluster shows them. Pure.

The order of the questions is the protocol: make all pods, wait for the permit, bind the permitted UIDs, report.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tessera.binder.claims.decide.objects import claim_names_of
from tessera.binder.decide.ends import (
    Broken,
    End,
    cause_of,
    describe,
    may_be_of_a_restart,
    milliseconds,
    read_end,
    suspects,
    warns_of_idleness,
)
from tessera.binder.decide.starting import Start, read_start
from tessera.domain.entities import Run
from tessera.domain.last_words import PodWord
from tessera.domain.storing.fast import replace
from tessera.domain.work.checkpoints import is_known
from tessera.domain.work.gang import ranks_out
from tessera_schemas.base import Json
from tessera_schemas.cluster.labels import (
    ALLOCATED_N_ANNOTATION,
    CHECKPOINT_ANNOTATION,
    CHECKPOINT_AT_ANNOTATION,
    DIGITS_MAX,
    ENDED_PHASES,
    EVICT_AT_ANNOTATION,
    FINALIZER,
    MANAGED_BY_LABEL,
    NOTICE_ANNOTATION,
    RANK_LABEL,
    SCHEDULER_NAME,
    SPEC_LABEL,
    TTL_ANNOTATION,
    given_back_ms,
    ledger_of,
)
from tessera_schemas.facts import AnyFact, PodsBound, RunEnded, RunStarted
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.shard.ledger_form import STARTS_TELL_ALL_FROM
from tessera_schemas.work.run_ends import CANCELS_FROM_WITHIN, FAILURES_OF_NODES, OOM_KILLED, WORTH_A_NOTICE, end_of

NOTICE_SECONDS_MAX = 3600
PATH_CHARACTERS_MAX = 1024
AT_CHARACTERS_MAX = 256
SUSPECTS_MAX = 64
SETTLE_SECONDS = 1.0
"""Kubelets look at their containers once a second: so much later than another one may tell of an earlier end."""
RESTART_SECONDS = 3.0
Boots = Callable[[str], str | None]
"""The boot of a node as of now, "" where it is not known; None for a node that is no more."""


@dataclass(frozen=True, slots=True)
class Pod:
    """Fields of a pod that matter here; `claims` are the ResourceClaims that it names."""

    uid: str
    name: str
    namespace: str
    node: str
    phase: str
    deleting: bool
    held: bool
    end: End
    start: Start
    allocated_n: int
    ttl_seconds: int
    is_ours: bool = True
    notice_seconds: int = 0
    evict_at_ms: int | None = None
    saved: str = ""
    saved_at: str = ""
    rank: int | None = None
    subdomain: str = ""
    adopted: bool = False
    version: str = ""
    given_back_ms: int = 0
    ledger: str = ""
    spec: str = ""
    deadline_seconds: int = 0
    claims: tuple[str, ...] = ()
    warns: bool = False

    @property
    def over(self) -> bool:
        """Tells whether the pod has ended, well or badly."""
        return self.phase in ENDED_PHASES

    @property
    def checkpoint_at(self) -> str:
        """Time of the checkpoint as the pod says it, cut to what a fact holds."""
        return self.saved_at[:AT_CHARACTERS_MAX]


def read_pod(pod: Json) -> Pod:
    """Read the API's object; what is not there is empty."""
    meta, status = pod["metadata"], pod.get("status") or {}
    notes = meta.get("annotations") or {}
    return Pod(
        uid=meta["uid"],
        name=meta["name"],
        namespace=meta.get("namespace", ""),
        node=pod.get("spec", {}).get("nodeName") or "",
        phase=status.get("phase", "Pending"),
        deleting="deletionTimestamp" in meta,
        held=FINALIZER in meta.get("finalizers", ()),
        end=read_end(pod),
        start=read_start(pod),
        allocated_n=count_of(notes.get(ALLOCATED_N_ANNOTATION, "")),
        ttl_seconds=count_of(notes.get(TTL_ANNOTATION, "")),
        is_ours=pod.get("spec", {}).get("schedulerName") == SCHEDULER_NAME,
        notice_seconds=min(count_of(notes.get(NOTICE_ANNOTATION, "")), NOTICE_SECONDS_MAX),
        evict_at_ms=milliseconds(notes[EVICT_AT_ANNOTATION]) or 0 if EVICT_AT_ANNOTATION in notes else None,
        saved=notes.get(CHECKPOINT_ANNOTATION, ""),
        saved_at=notes.get(CHECKPOINT_AT_ANNOTATION, ""),
        rank=_rank((meta.get("labels") or {}).get(RANK_LABEL, "")),
        subdomain=pod.get("spec", {}).get("subdomain") or "",
        adopted=_is_adopted(pod),
        version=meta.get("resourceVersion", ""),
        given_back_ms=given_back_ms(pod),
        ledger=ledger_of(pod),
        spec=(meta.get("labels") or {}).get(SPEC_LABEL, ""),
        deadline_seconds=pod.get("spec", {}).get("activeDeadlineSeconds") or 0,
        claims=claim_names_of(pod),
        warns=warns_of_idleness(pod),
    )


def _is_adopted(pod: Json) -> bool:
    """A user made it, for our scheduler: it is its owner's to delete. What we made has our finalizer or our label."""
    meta = pod["metadata"]
    managed = (meta.get("labels") or {}).get(MANAGED_BY_LABEL) == SCHEDULER_NAME
    made = managed or FINALIZER in (meta.get("finalizers") or ())
    return pod.get("spec", {}).get("schedulerName") == SCHEDULER_NAME and not made


def _rank(label: str) -> int | None:
    """The rank that the label says; None for a pod that Tessera did not make."""
    return int(label) if label.isdecimal() and len(label) <= DIGITS_MAX else None


def count_of(text: str) -> int:
    """The count that we wrote there; text by others counts as 0."""
    return int(text) if text.isdecimal() and len(text) <= DIGITS_MAX else 0


def no_boots(node: str) -> str:
    """No node's boot is known."""
    return ""


def to_report(run: Run, pods: Iterable[Pod], boots: Boots = no_boots) -> list[AnyFact]:
    """
    The facts that a permitted, unstopped run's pods amount to, in the order in which they became so.

    A pod that was released while its gang goes on has succeeded, whether its object is still there or not, unless it
    shows that it failed: then its owner went on without it, and the whole is no success.
    """
    by_uid = {pod.uid: pod for pod in pods}
    ours = [by_uid.get(uid) for uid in run.uids]
    if (broken := _ended_badly(run, ours, boots)) is not None:
        return [_with_steps(broken, ours)]
    there = [pod for pod in ours if pod is not None]
    if any(pod is None and rank not in run.released_ranks for rank, pod in enumerate(ours)):
        return []
    facts: list[AnyFact] = []
    if all(pod.node for pod in there) and not run.bound:
        facts.append(PodsBound(kind="pods_bound", run_id=run.run_id))
    if not run.started and all(pod.phase in ("Running", "Succeeded") for pod in there):
        facts.append(RunStarted(kind="run_started", run_id=run.run_id))
    done = all(pod.phase == "Succeeded" or rank in run.released_ranks for rank, pod in enumerate(ours) if pod)
    if done and not _has_surplus_at_work(run, by_uid):
        failed = [pod if pod is not None and pod.phase == "Failed" else None for pod in ours]
        in_part = _ended_badly(replace(run, released_ranks=()), failed, boots)
        facts.append(_with_steps(in_part or RunEnded(kind="run_ended", run_id=run.run_id), ours))
    return facts


def as_told(facts: Sequence[AnyFact], known: int) -> Sequence[AnyFact]:
    """The facts of one look, for a committer of the ledger's format `known`: the last may tell what came before it."""
    ended_badly = bool(facts) and isinstance(facts[-1], RunEnded) and facts[-1].reason is not None
    return facts if ended_badly or known < STARTS_TELL_ALL_FROM else facts[-1:]


def _with_steps(ended: RunEnded, ours: Sequence[Pod | None]) -> RunEnded:
    """The end of a run with the steps of which its first pod told."""
    word = _word_of(ours)
    return ended if word is None or word.steps is None else ended.model_copy(update={"steps": word.steps})


def _word_of(ours: Sequence[Pod | None]) -> PodWord | None:
    first = ours[0] if ours else None
    return first.end.word if first is not None and first.over and not first.adopted else None


def _as_asked(run: Run, ours: Sequence[Pod | None], broken: Sequence[Broken]) -> RunEnded | None:
    """
    The end that the run's own script asked for, whatever pods of the gang ended with it.

    What ended the first pod from outside stands: then the job begins anew by that. A cancel holds all the same.
    """
    word, first = _word_of(ours), next((each for each in broken if each.rank == 0), None)
    if word is None or word.ask is None or first is None or (ours[0] is not None and ours[0].phase != "Failed"):
        return None
    if word.ask not in CANCELS_FROM_WITHIN and first.code is not Code.POD_FAILED:
        return None
    return RunEnded(kind="run_ended", run_id=run.run_id, reason=Reason(code=word.ask, detail=word.who))


def find_cancel(run: Run, pods: Iterable[Pod]) -> RunEnded | None:
    """The cancel that the script of a run asked for while that was to be stopped, and to begin anew."""
    by_uid = {pod.uid: pod for pod in pods}
    ours = [by_uid.get(uid) for uid in run.uids]
    asked = _as_asked(run, ours, _broken_of_gang(run, ours[:1], no_boots))
    is_cancel = asked is not None and asked.reason is not None and asked.reason.code in CANCELS_FROM_WITHIN
    return asked if is_cancel and run.then == "requeue" else None


def find_own_end(run: Run, pods: Iterable[Pod], boots: Boots = no_boots) -> RunEnded | None:
    """
    The end of a run that is to be stopped, if it ended by itself before any pod of it was told to.

    A program may answer SIGTERM with any exit code, and its peers fail with it: once a pod is being deleted, or is not
    there any more, no end says anything.
    """
    by_uid = {pod.uid: pod for pod in pods}
    shown = [by_uid.get(uid) for uid in run.uids]
    left = {rank for rank in run.released_ranks if rank < len(shown) and _is_away(shown[rank])}
    ours = [None if rank in left else pod for rank, pod in enumerate(shown)]
    there = [pod for pod in ours if pod is not None]
    surplus = (by_uid.get(extra.uid) for extra in run.surplus)
    if not there or any(pod is not None and pod.deleting for pod in (*there, *surplus)):
        return None
    # Whom its owner took away before is no loss. That nobody was told to stop since is known within the notice alone.
    if len(there) + len(left) < len(ours) or (left and not all(map(_ended_in_notice, there))):
        return None
    if (broken := _ended_badly(run, ours, boots)) is not None:
        return _with_steps(broken, ours) if broken.own else None
    ended = all(pod.phase == "Succeeded" for pod in there) and not _has_surplus_at_work(run, by_uid)
    return _with_steps(RunEnded(kind="run_ended", run_id=run.run_id), ours) if ended else None


def _is_away(pod: Pod | None) -> bool:
    return pod is None or pod.deleting


def _ended_in_notice(pod: Pod) -> bool:
    ended, until = pod.end.finished_ms, pod.evict_at_ms
    return pod.over and ended is not None and until is not None and ended <= until


def _has_surplus_at_work(run: Run, pods: Mapping[str, Pod]) -> bool:
    """Whether a pod that the run grew by, and that is to stay, runs: what has not begun by now need not begin."""
    found = (pods.get(extra.uid) for extra in run.surplus if extra.uid)
    return any(pod is not None and pod.phase == "Running" and not pod.deleting for pod in found)


def find_broken_surplus(pods: Mapping[int, Pod], boots: Boots = no_boots) -> dict[int, Reason]:
    """The ranks, of these that a run grew by, whose pods ended otherwise than by success, and why."""
    return {rank: reason_of(broken_of(pod, rank, False, boots)) for rank, pod in pods.items() if is_broken(pod)}


def reason_of(broken: Broken) -> Reason:
    """The end of one pod in the words of a fact."""
    return Reason(code=broken.code, numbers=broken.numbers, detail=broken.detail)


def is_broken(pod: Pod) -> bool:
    """Whether a pod has ended otherwise than by success, or is about to."""
    return pod.phase != "Succeeded" and (pod.deleting or pod.phase == "Failed")


def missing(run: Run, pods: Mapping[str, Pod], seen_to_go: Container[str] = ()) -> list[int]:
    """The ranks whose pods are not there any more; before the run has started, only those that were seen to go."""
    out = ranks_out(run.restarts)
    absent = [(rank, uid) for rank, uid in enumerate(run.uids) if uid not in pods and rank not in out]
    gone = [rank for rank, uid in absent if run.started or uid in seen_to_go]
    return [rank for rank in gone if rank not in run.released_ranks]


def pods_beyond(limit_seconds: int, pods: Iterable[Pod]) -> list[Pod]:
    """The pods at work that may run longer than the job's time limit (0: none), which was lowered since they began."""
    going = (pod for pod in pods if not (pod.over or pod.deleting or pod.adopted))
    return [pod for pod in going if limit_seconds and not 0 < pod.deadline_seconds <= limit_seconds]


def is_touched(run: Run, pods: Mapping[str, Pod]) -> bool:
    """Whether a pod of its gang has been stopped already, by whomever; one that succeeded has not."""
    there = [pods.get(uid) for uid in run.uids]
    return any(pod is None or pod.deleting or pod.phase == "Failed" for pod in there)


def _broken_of_gang(run: Run, pods: Iterable[Pod | None], boots: Boots) -> list[Broken]:
    pairs = [(rank, pod) for rank, pod in enumerate(pods) if pod is not None and is_broken(pod)]
    # While the run goes on, a rank that was released has done its part, or its owner took it away. Later it may be any.
    staying = [(rank, pod) for rank, pod in pairs if run.stopping or rank not in run.released_ranks]
    return [broken_of(pod, rank, run.started, boots) for rank, pod in staying]


def broken_of(pod: Pod, rank: int, started: bool, boots: Boots) -> Broken:
    """Why a pod that is broken is so; `started`: it is known to have run, though its status may not show it."""
    failed, boot = pod.phase == "Failed", boots(pod.node)
    code = cause_of(pod.end, failed=failed, deleting=pod.deleting, started=started, boot=boot)
    return Broken(rank, pod.name, pod.node, code, pod.end)


def _ended_badly(run: Run, pods: list[Pod | None], boots: Boots) -> RunEnded | None:
    """A pod that ended otherwise than by success ends the gang: the first one that did, not the first by rank."""
    broken = _broken_of_gang(run, pods, boots)
    if not broken:
        return None
    asked = _as_asked(run, pods, broken)
    if asked is not None:
        return asked
    found = suspects(broken)
    first, several = found[0], len(found) > 1
    numbers = first.numbers | ({"suspects": len(found)} if several else {})
    return RunEnded(
        kind="run_ended",
        run_id=run.run_id,
        reason=Reason(code=first.code, numbers=numbers, detail=describe(found)[:1024]),
        own=end_of(first.code).spends,
        exit_code=first.end.exit_code,
        rank=first.rank,
        nodes=tuple(dict.fromkeys(pod.node for pod in found if pod.node))[:SUSPECTS_MAX] if several else (),
        oom=first.end.why == OOM_KILLED and first.code is Code.POD_FAILED,
    )


def seconds_to_settle(run: Run, pods: Mapping[str, Pod], boots: Boots) -> float:
    """
    Time that the end of a broken run waits for what else is about to be seen; 0 when nothing is.

    Each node tells by itself that a pod of the gang ended, maybe an earlier one; and that its machine restarted, by
    another watch than the pod's.
    """
    ours = [pods.get(uid) for uid in run.uids]
    if not _broken_of_gang(run, ours, boots):
        return 0.0
    if nodes_in_doubt(run, pods, boots):
        return RESTART_SECONDS
    at_work = any(pod is not None and not pod.over and not pod.deleting for pod in ours)
    return SETTLE_SECONDS if at_work else 0.0


def nodes_in_doubt(run: Run, pods: Mapping[str, Pod], boots: Boots) -> list[str]:
    """The nodes on which the run broke as by a restart of the machine, and that do not say that there was one."""
    broken = _broken_of_gang(run, [pods.get(uid) for uid in run.uids], boots)
    doubtful = (each.node for each in broken if may_be_of_a_restart(each.end, each.code, boots(each.node)))
    return list(dict.fromkeys(doubtful))


def failed_at(pod: Json) -> str:
    """The node that a failure of this pod counts against, as of a run's pod; "" where there is none."""
    if (pod.get("status") or {}).get("phase") != "Failed":
        return ""
    read = read_pod(pod)
    return read.node if broken_of(read, 0, False, no_boots).code in FAILURES_OF_NODES else ""


def is_due_notice(run: Run, pod: Pod) -> bool:
    """
    Whether this pod of a revoked run, or one that an elastic run is to go on without, may go on for its notice.

    Once a checkpoint was taken in after that was said, nothing is left to wait for.
    """
    since, goes_on = (run.resized_ts, not run.over) if run.revoked is None else (run.stopped_ts, False)
    well = run.started and (goes_on or (run.revoked is not None and run.revoked.code in WORTH_A_NOTICE))
    waits = pod.notice_seconds > 0 and pod.phase == "Running" and not pod.deleting
    return well and waits and run.saved_ts < since and not run.hurried


def is_new_checkpoint(run: Run, known_path: str, pod: Pod, last_reported: tuple[str, str] | None) -> bool:
    """
    Whether the pod shows a checkpoint that the ledger does not know; `last_reported` is what it showed before.

    The ledger knows the run's last checkpoints, whichever pod reported them. Of a run from before it did, what is shown
    at the first look counts as known if it is the job's path: a checkpoint that seems older than it is costs less than
    one that seems newer.
    """
    if pod.uid not in run.permitted or not is_path(pod.saved) or is_known(run, pod.saved, pod.checkpoint_at):
        return False
    return last_reported is not None or not run.saved_ts or bool(run.saved_marks) or pod.saved != known_path


def is_path(text: str) -> bool:
    """Whether this can be handed to the next attempt: it becomes part of a record and of an environment."""
    return 0 < len(text) <= PATH_CHARACTERS_MAX and text.isprintable()
