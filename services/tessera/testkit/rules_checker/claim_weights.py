"""GPUs for which claims on published devices count against quotas, by the devices that the ledger has taken in."""

from collections.abc import Mapping

from tessera.testkit.devices_checker import CheckedDevices
from tessera.testkit.rules_checker.quotas import Quotas
from tessera.testkit.rules_checker.rows import JobRow, RunRow, amount_of
from tessera_schemas import ledger as m
from tessera_schemas.cluster.device_facts import ClassSeen, DevicesSelected, LayoutSeen
from tessera_schemas.facts import AnyFact, NodeSeen
from tessera_schemas.work.spec_changes import with_size


class ClaimWeights:
    """Counts jobs in line anew whenever more is known of devices; a run keeps what it counted for when it began."""

    def __init__(
        self,
        nodes: Mapping[str, NodeSeen],
        quotas: Quotas,
        jobs: Mapping[str, JobRow],
        runs: Mapping[str, RunRow],
        marks: Mapping[str, m.EarmarkSet],
    ) -> None:
        self._devices = CheckedDevices(nodes)
        self._quotas, self._jobs, self._runs, self._marks = quotas, jobs, runs, marks

    def take(self, fact: AnyFact | None) -> None:
        """Takes in what the ledger noted; the amounts of earmarks are those of their jobs."""
        if not isinstance(fact, LayoutSeen | ClassSeen | DevicesSelected):
            return
        self._devices.take(fact)
        begun = [run.job for run in self._runs.values()]
        for name, job in self._jobs.items():
            if job.claimed and not job.ended and job not in begun:
                mark, before = self._marks.get(name), job.amount
                self.weigh(job)
                if mark is not None:
                    self._quotas.add(job.spec.queue, mark.flavor, before, -1)
                    self._quotas.add(job.spec.queue, mark.flavor, job.amount)

    def weigh(self, job: JobRow) -> None:
        """Counts what the job's gang asks for, its claims by the devices that are known now."""
        job.spec = job.spec if job.due is None else with_size(job.spec, job.due)
        claims = [(role.name, claim) for role in job.spec.roles for claim in role.resources.claims]
        job.claimed = {(role, claim.name): self._devices.gpu_milli(claim) for role, claim in claims}
        job.amount = amount_of(job, [(role.name, role.gang) for role in job.spec.roles])
