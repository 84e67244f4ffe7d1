"""What both made of a world, side by side: faults of Tessera, figures, and what kube-scheduler itself got wrong."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.kubernetes.oracle.deciding import Deciding
from tests.kubernetes.oracle.judging import GaveUp, Judge, PlacedPod
from tests.kubernetes.oracle.placing import Objects

Json = dict[str, Any]


@dataclass
class Verdict:
    """
    One world. `faults` must be empty. `counts` are gangs and pods in it, those that each placed, and what could not be
    judged; `by_luck` are the gangs that a round of kube-scheduler placed together and Tessera, in its order, did not.
    """

    seed: int
    faults: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    by_luck: list[str] = field(default_factory=list)


def compare(seed: int, rounds: Sequence[Objects]) -> Verdict:
    """Tessera on the world as kube-scheduler's rounds left it on the API server."""
    verdict = Verdict(seed)
    first, judges = rounds[0], [Judge(each.slices, each.classes) for each in rounds]
    sizes = {gang: len(pods) for gang, pods in first.gangs().items()}
    whole = [
        [gang for gang in each.whole_gangs() if _is_legal(judge, each, gang, verdict)]
        for each, judge in zip(rounds, judges, strict=True)
    ]
    deciding = Deciding(first)
    placed = deciding.decide(list(sizes))
    verdict.faults += [f"{each.gang} is refused: {each.reason.field} {each.reason.detail}" for each in deciding.refused]
    ours = [pod for pods in placed.values() for pod in pods]
    verdict.faults += [f"illegal: {fault}" for fault in judges[0].faults(ours)]
    waiting = [gang for gang in sizes if gang not in placed]
    verdict.faults += [
        f"{gang} would fit in what is free" for gang in waiting if _fits(judges[0], first, gang, ours, verdict)
    ]
    for number, (objects, judge, gangs) in enumerate(zip(rounds, judges, whole, strict=True)):
        alone = Deciding(objects).decide(gangs)
        if lacking := [gang for gang in gangs if gang not in alone]:
            verdict.by_luck.append(f"round {number}: {', '.join(lacking)} of {', '.join(gangs)}")
        verdict.faults += [f"round {number}: {why}" for why in _cannot_follow(objects, judge, gangs, verdict)]
    least = min(len(gangs) for gangs in whole)
    verdict.counts.update(
        worlds=1,
        gangs=len(sizes),
        pods=sum(sizes.values()),
        tessera_gangs=len(placed),
        tessera_pods=len(ours),
        kube_gangs=least,
        kube_pods=min(sum(sizes[gang] for gang in gangs) for gangs in whole),
        tessera_below=len(placed) < least,
        tessera_above=len(placed) > max(len(gangs) for gangs in whole),
        kube_in_part=sum(any(pod["spec"].get("nodeName") for pod in each) for each in first.gangs().values())
        - len(first.whole_gangs()),
    )
    return verdict


def _is_legal(judge: Judge, objects: Objects, gang: str, verdict: Verdict) -> bool:
    """Whether what kube-scheduler gave to a gang is legal by itself."""
    wrong = judge.faults([objects.placed(pod) for pod in objects.gangs()[gang]])
    verdict.counts["kube_illegal"] += bool(wrong)
    return not wrong


def _fits(judge: Judge, objects: Objects, gang: str, placed: Sequence[PlacedPod], verdict: Verdict) -> bool:
    nodes = [node["metadata"]["name"] for node in objects.nodes]
    try:
        return judge.fits([objects.specs_of(pod) for pod in objects.gangs()[gang]], placed, nodes)
    except GaveUp:
        verdict.counts["not_judged"] += 1
        return False


def _cannot_follow(objects: Objects, judge: Judge, gangs: Sequence[str], verdict: Verdict) -> list[str]:
    """
    Gangs that Tessera cannot place where kube-scheduler did, everybody else's devices being taken.

    This needs no luck with orders: what the gang has there is free, and legal.
    """
    lacking, bound = [], [pod for pod in objects.pods if pod["spec"].get("nodeName")]
    for gang in gangs:
        mine = objects.gangs()[gang]
        others = [claim for pod in bound if pod not in mine for claim in objects.claims_of(pod)]
        if gang in Deciding(objects, others).decide([gang]):
            verdict.counts["followed"] += 1
        elif any(judge.ends_in_an_error(objects.specs_of(pod), pod["spec"]["nodeName"]) for pod in mine):
            verdict.counts["expression_ends_in_an_error"] += 1
        else:
            lacking.append(f"{gang} cannot be placed, and kube-scheduler has placed it")
    return lacking
