"""
The marks of other systems on users' objects, and what becomes of each: a new one is a line of `marks.toml`. Pure.

A mark is a label or an annotation. What honoured ones say is read where it decides: the modules of `kinds`, `marks`
(queues, topology), amounts, durations, `cluster_marks`. The table in the docs is made from this one.
"""

import tomllib
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib.resources import files

from tessera_schemas.base import Json

KUEUE, VOLCANO, YUNIKORN = "kueue.x-k8s.io/", "volcano.sh/", "yunikorn.apache.org/"
LWS, JOB_SET, ARMADA = "leaderworkerset.sigs.k8s.io/", "jobset.sigs.k8s.io/", "armadaproject.io/"
KOORDINATOR_GANG, SLURM = "gang.scheduling.koordinator.sh/", "slurmjob.slinky.slurm.net/"
KUEUE_QUEUE, SLURM_PARTITION, SLURM_WCKEY = f"{KUEUE}queue-name", f"{SLURM}partition", f"{SLURM}wckey"
KOORDINATOR_QUEUE = "quota.scheduling.koordinator.sh/name"
TIME_LIMIT, SLURM_TIME_LIMIT = f"{KUEUE}max-exec-time-seconds", f"{SLURM}timelimit"
LEAST_PODS = f"{KUEUE}job-min-parallelism"
REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY = f"{KUEUE}podset-required-topology", f"{KUEUE}podset-preferred-topology"
SHARED_DOMAIN = f"{KUEUE}podset-group-name"
SLICE_TOPOLOGY, SLICE_SIZE = f"{KUEUE}podset-slice-required-topology", f"{KUEUE}podset-slice-size"
ARMADA_TOPOLOGY = f"{ARMADA}gangNodeUniformityLabel"
USE_MODEL, AVOID_MODEL = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
UNKNOWN = "Tessera does not know this mark"


class Treatment(StrEnum):
    HONOURED = "honoured"
    REFUSED = "refused"
    TOLD = "told"
    NOTED = "noted"
    """The other system's own notes, or a permission: they ask for nothing."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The fate of the marks `keys`, in the words of `marks.toml`."""

    treatment: Treatment
    detail: str
    keys: tuple[str, ...]
    value: str = ""
    settled_by: tuple[str, str] = ("", "")
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class System:
    """A system, the domains of its marks or how those without a domain begin, and the marks that are known."""

    name: str
    domains: tuple[str, ...]
    marks: tuple[Mark, ...]


def _read(row: Json) -> Mark:
    (treatment,) = (each for each in Treatment if each.value in row)
    settled_by = tuple(row.get("settled_by", ("", "")))
    return Mark(
        treatment, row[treatment.value], tuple(row["keys"]), row.get("value", ""), settled_by, row.get("keeps", False)
    )


_TABLE = tomllib.loads((files(__package__) / "marks.toml").read_text(encoding="utf-8"))
GROUP_FIELDS: dict[str, str] = _TABLE["fields"]
SYSTEMS = tuple(
    System(each["name"], tuple(each["domains"]), tuple(map(_read, each["marks"]))) for each in _TABLE["systems"]
)
MARKS: dict[str, tuple[Mark, ...]] = {}
"""The marks of each key in their order."""
for _mark in (mark for system in SYSTEMS for mark in system.marks):
    MARKS.update({key: (*MARKS.get(key, ()), _mark) for key in _mark.keys})
DOMAINS = tuple(domain for system in SYSTEMS for domain in system.domains)


def mark_of(key: str, value: object) -> Mark | None:
    """The first entry for a mark of this value; None for one that is no system's. A system's unknown one is told."""
    rows = MARKS.get(key) or MARKS.get(f"*/{key.rpartition('/')[2]}")
    if rows is None:
        return Mark(Treatment.TOLD, UNKNOWN, (key,)) if _is_of_a_system(key) else None
    return next((row for row in rows if row.value in str(value)), None)


@lru_cache(maxsize=4096)
def _is_of_a_system(key: str) -> bool:
    """Whether the key is in the domain of a system that is known, or begins as marks of one do."""
    domain, slash, _ = key.partition("/")
    if not slash:
        return key.startswith(DOMAINS)
    return any(domain == known or domain.endswith(f".{known}") for known in DOMAINS)
