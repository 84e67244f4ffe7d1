"""
Rules of groups that start again: whole copies, for a pod's end that was said, and no more often than asked. What grows
by copies of a group comes and goes in whole ones.
"""

from dataclasses import dataclass, field

from tessera.testkit.checker.report import Report
from tessera_schemas import facts as f
from tessera_schemas import ledger as m
from tessera_schemas.cluster.gang_groups import RoleGroup
from tessera_schemas.config import Policy
from tessera_schemas.job import JobSpec
from tessera_schemas.shard.records import GroupPermitted, GroupPodsMade, GroupRestarted, GroupResumed, GroupStarted


@dataclass(slots=True)
class RestartedRun:
    """Restarts of a run: so many in all, and of each copy of a group so many in a row, and since when the last ran."""

    spec: JobSpec
    total: int = 0
    counts: dict[tuple[str, tuple[int, ...]], tuple[int, int]] = field(default_factory=dict)
    out: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)  # copies that do not run again yet
    beyond: dict[int, int] = field(default_factory=dict)  # first rank of its copy, of each pod beyond the gang


class GroupRules:
    def __init__(self, report: Report) -> None:
        self.report, self.n, self.ts, self.steady_ms = report, 0, 0, Policy().steady_seconds * 1000
        self.specs, self.runs = dict[str, JobSpec](), dict[str, RestartedRun]()

    def demand(self, holds: bool, text: str) -> None:
        """Counts one check at the message that is being read, and a violation where it does not hold."""
        self.report.demand(holds, "group", self.n, text)

    def take(self, message: m.LedgerMessage) -> None:
        """Checks each record of a message in order."""
        self.n, self.ts = message.n, message.ts
        facts = [taken.fact for taken in message.facts]
        for record in message.records:
            cited = next(iter(facts[getattr(record, "fact", len(facts)) :]), None)
            if isinstance(record, m.JobQueued) and isinstance(cited, f.JobAdmitted):
                self.specs[record.job_id] = cited.spec
            elif isinstance(record, m.TaskQueued) and record.array in self.specs:
                self.specs[record.job_id] = self.specs[record.array]
            elif isinstance(record, m.ConfigSet) and isinstance(cited, f.ConfigProposed):
                self.steady_ms = cited.body.policy.steady_seconds * 1000
            elif isinstance(record, m.Allocated) and record.job_id in self.specs:
                self.runs[f"{record.job_id}-{record.attempt}"] = RestartedRun(self.specs[record.job_id])
            elif isinstance(record, GroupRestarted | GroupPermitted | GroupResumed):
                self._judge(record, facts)
            elif isinstance(record, m.Grown | m.Shrunk | m.Released) and record.run_id in self.runs:
                self._resized(record, self.runs[record.run_id])

    def _resized(self, r: m.Grown | m.Shrunk | m.Released, run: RestartedRun) -> None:
        if isinstance(r, m.Grown):
            self._grown(r, run)
            return
        left = {rank: run.beyond.pop(rank) for rank in r.ranks if rank in run.beyond}
        if isinstance(r, m.Shrunk):  # and what has ended by itself leaves its copy
            parted = [rank for rank, first in run.beyond.items() if first in left.values()]
            self.demand(not parted, f"{r.run_id} shrinks by {r.ranks}, and keeps {parted} of the same copies")

    def _grown(self, r: m.Grown, run: RestartedRun) -> None:
        roles = {role.name: role for role in run.spec.roles}
        elastic = {name for name, role in roles.items() if role.gang < role.most}
        sizes = next((group.pods for group in run.spec.groups if elastic & group.pods.keys()), None)
        if sizes is None:
            return
        copy = [name for name in roles for _ in range(sizes.get(name, 0))]
        cut = [r.placements[at : at + len(copy)] for at in range(0, len(r.placements), len(copy))]
        whole = all([place.role for place in places] == copy for places in cut)
        self.demand(whole, f"{r.run_id} grows by {[place.role for place in r.placements]}, and not by copies of {copy}")
        run.beyond |= {place.rank: places[0].rank for places in cut for place in places}

    def _judge(self, r: GroupRestarted | GroupPermitted | GroupResumed, facts: list[f.AnyFact]) -> None:
        if (run := self.runs.get(r.run_id)) is None:
            self.demand(False, f"{r.kind} of {r.run_id}, which nobody knows")
        elif isinstance(r, GroupRestarted):
            ended = [a for a in facts if isinstance(a, f.RunEnded) and a.run_id == r.run_id and a.rank in r.ranks]
            self.demand(any(a.reason == r.reason for a in ended), f"{r.run_id} starts {r.ranks} again, and none ended")
            self._restarted(r, run)
        elif isinstance(r, GroupPermitted):
            made = [a.uids for a in facts if isinstance(a, GroupPodsMade) and (a.run_id, a.restart) == _of(r)]
            self.demand(r.uids in made, f"{r.run_id} is permitted pods of restart {r.restart} that nobody has seen")
        else:
            said = any(isinstance(a, GroupStarted) and (a.run_id, a.restart) == _of(r) for a in facts)
            self.demand(said and r.restart in run.out, f"restart {r.restart} of {r.run_id} is over, and nobody said so")
            run.out.pop(r.restart, None)

    def _restarted(self, r: GroupRestarted, run: RestartedRun) -> None:
        group = next((each for each in run.spec.groups if each.name == r.group and each.restart), None)
        if group is None or group.restart is None:
            self.demand(False, f"{r.run_id} starts group {r.group} again, which says nothing of that")
            return
        copies = [*_copies(run.spec, group)]
        whole = r.copy_number < len(copies) and copies[r.copy_number] == r.ranks
        self.demand(whole, f"{r.run_id} starts {r.ranks} again, which is no copy of {r.group}")
        run.total += 1
        before, last = run.counts.get((r.group, r.ranks), (0, 0))
        held = (r.group, r.ranks) not in run.out.values() and self.ts - last >= self.steady_ms
        count = 1 if held else before + 1
        well = (r.restart, r.count) == (run.total, count) and count <= group.restart.max_restarts
        self.demand(well, f"{r.run_id}: restart {r.restart}, {r.count} of {r.group}; {run.total}, {count} were due")
        # Copies within this one begin anew.
        wider, name = list[str](), group.within
        while name is not None:
            wider.append(name)
            name = next(each.within for each in run.spec.groups if each.name == name)
        run.counts = {at: told for at, told in run.counts.items() if at[0] in wider or not {*at[1]} <= {*r.ranks}}
        run.out = {at: copy for at, copy in run.out.items() if copy in run.counts} | {r.restart: (r.group, r.ranks)}
        run.counts[r.group, r.ranks] = count, self.ts


def _of(r: GroupPermitted | GroupResumed) -> tuple[str, int]:
    return r.run_id, r.restart


def _copies(spec: JobSpec, group: RoleGroup) -> list[tuple[int, ...]]:
    """Ranks of each copy of a group: of each of its roles the next pods in rank order."""
    firsts, at = dict[str, int](), 0
    for role in spec.roles:
        firsts[role.name], at = at, at + role.gang
    sizes = {role.name: group.pods.get(role.name, 0) for role in spec.roles if role.name in group.pods}
    if not sizes:
        return [tuple(range(at))]
    count = next(role.gang // sizes[role.name] for role in spec.roles if role.name in sizes)
    return [
        tuple(firsts[name] + copy * size + each for name, size in sizes.items() for each in range(size))
        for copy in range(count)
    ]
