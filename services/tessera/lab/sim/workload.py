"""What clients of a simulated shard do: submits of every kind, repeats, cancels, and input that must be refused."""

from dataclasses import dataclass
from random import Random
from typing import Any

from tessera_schemas.base import job_id
from tessera_schemas.commands import ApplyConfig, CancelJob, SubmitJob
from tessera_schemas.config import ConfigBody, Limits, Policy, Queue, Quota, Tenant
from tessera_schemas.job import JobSpec, Resources, Retry, Role, Template, Toleration
from tessera_schemas.subjects import control, submit

GIB = 2**30
TENANTS = ("red", "blue")
CLASSES = ("low", "normal", "high")
START_TIMEOUT_SECONDS = 15
HUGE_TENANT, HUGE_KEY = "red", "huge"
"""A job that no node can hold: refused once nodes are known, else it waits until it is cancelled in the end."""


@dataclass(frozen=True, slots=True)
class Command:
    """Something a client publishes at `at` seconds and repeats until it is acknowledged. `key` of submits only."""

    at: float
    subject: str
    data: bytes
    tenant: str = ""
    key: str = ""


def configuration(shard: str, random: Random, expected_version: int = 0) -> Command:
    """The second configuration has a quota that holds every gang: a smaller one would leave jobs waiting for ever."""
    gpus = random.randrange(24, 33) if expected_version else random.randrange(12, 25)
    body = ConfigBody(
        tenants=tuple(Tenant(name=name, limits=Limits(jobs=200, gpus_per_job=64)) for name in TENANTS),
        queues=(
            Queue(name="research", quotas=(Quota(resource="gpu_milli", nominal=gpus * 1000),)),
            Queue(name="prod"),
        ),
        policy=Policy(start_timeout_seconds=START_TIMEOUT_SECONDS, key_memory_seconds=3600),
    )
    command = ApplyConfig(kind="apply_config", v=1, expected_version=expected_version, body=body)
    return Command(0.0 if not expected_version else random.uniform(4, 8), control(shard), command.to_bytes())


def commands(shard: str, random: Random, jobs: int, seconds: float) -> list[Command]:
    """At least `jobs` submits, of which two or more are gangs, and what happens around them."""
    made: list[Command] = []
    for index in range(jobs):
        at, tenant = random.uniform(0.5, seconds), random.choice(TENANTS)
        spec = job_spec(random, gang=index < 2 or random.random() < 0.15)
        made.append(_submit(shard, at, tenant, f"key-{index}", spec))
        if random.random() < 0.15:
            made.append(_submit(shard, at + random.uniform(0, 3), tenant, f"key-{index}", spec))
        if random.random() < 0.05:
            made.append(_submit(shard, at + random.uniform(0, 3), tenant, f"key-{index}", job_spec(random)))
        if random.random() < 0.2:
            made.append(cancel(shard, tenant, f"key-{index}", at + random.uniform(0, 6)))
    for body in (b"{", b"[]", b'{"kind":"submit_job","v":1,"key":"x","spec":{}}', b'{"kind":"submit_job","v":9}'):
        made.append(Command(random.uniform(0.5, seconds), submit(shard, random.choice(TENANTS)), body))
    made.append(_submit(shard, random.uniform(0.5, seconds), HUGE_TENANT, HUGE_KEY, job_spec(random, gpus=64)))
    made.append(configuration(shard, random, expected_version=1))
    return sorted(made, key=lambda command: (command.at, command.data))


def cancel(shard: str, tenant: str, key: str, at: float = 0.0) -> Command:
    command = CancelJob(kind="cancel_job", v=1, job_id=job_id(shard, tenant, key))
    return Command(at, submit(shard, tenant), command.to_bytes(), tenant)


def _submit(shard: str, at: float, tenant: str, key: str, spec: JobSpec) -> Command:
    data = SubmitJob(kind="submit_job", v=1, key=key, spec=spec).to_bytes()
    return Command(at, submit(shard, tenant), data, tenant, key)


def job_spec(random: Random, gang: bool = False, gpus: int | None = None) -> JobSpec:
    kind = random.choice(("whole", "whole", "share", "cpu"))
    asked: dict[str, Any] = {"cpu_milli": random.randrange(500, 8000), "memory_bytes": random.randrange(1, 16) * GIB}
    if gpus is not None:
        asked["gpus"] = gpus
    elif kind == "whole" or gang:
        asked["gpus"] = random.choice((1, 1, 2, 4))
    elif kind == "share":
        asked["gpu_milli"] = random.choice((100, 250, 500, 700))
    exit_code = "1" if random.random() < 0.12 else "0"
    template = Template(
        image="train:1",
        annotations={
            "tessera.io/simulate-seconds": f"{random.uniform(0.05, 4):.2f}",
            "tessera.io/simulate-exit-code": exit_code,
            "tessera.io/simulate-term-ms": str(random.randrange(10, 3000)),
        },
    )
    role = Role(
        name="worker",
        replicas=random.randrange(2, 7) if gang else 1,
        resources=Resources(**asked),
        gpu_models=("H100",) if random.random() < 0.1 and gpus is None else (),
        tolerations=(Toleration(key="dedicated"),) if random.random() < 0.5 else (),
        template=template,
    )
    return JobSpec(
        name=f"job-{random.randrange(1000)}",
        queue=random.choice(("research", "prod")),
        priority_class=random.choice(CLASSES),
        roles=(role,),
        time_limit_seconds=2 if random.random() < 0.1 else None,
        termination_grace_seconds=random.choice((0, 1, 2)),
        ttl_seconds_after_finished=random.choice((0, 2, 6)),
        retry=Retry(
            max_attempts=random.choice((2, 4, 8)),
            backoff_seconds=random.choice((0, 1)),
            backoff_max_seconds=4,
            on_failure=random.random() < 0.5,
        ),
    )
