"""Batch scripts as tests write them, and what a pod of their jobs prints."""

import subprocess
from datetime import datetime

import pytest

from tessera.client.input import files
from tessera.client.outcomes import Failure
from tessera.client.slurm.scripts.against import Against
from tessera.client.slurm.scripts.jobs import job_of
from tessera.client.slurm.scripts.options import split_words
from tessera.client.slurm.scripts.script import Script, read_script
from tessera_schemas.job import JobSpec
from tests.kubelet import expanded

NOON = datetime.fromisoformat("2030-03-04T12:00:00+00:00")
HERE = {"TOKEN": "of this shell"}


def script(*options: str, body: str = "srun python train.py") -> str:
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {option}" for option in options), "", body, ""])


def read(*options: str, line: str = "", body: str = "srun python train.py") -> Script:
    said, arguments = split_words(line.split())
    return read_script(script(*options, body=body), "train.sh", (), said, arguments)


def spec_of(made: Script, image: str | None = "train:1") -> JobSpec:
    against = Against(made)
    spec = files.job_spec(job_of(made, image, HERE, NOON, against), "train.sh")
    if against.error is not None:
        raise against.error
    return JobSpec.model_validate({"queue": "default", **spec})


def job(*options: str, image: str | None = "train:1", **more: str) -> JobSpec:
    return spec_of(read(*options, **more), image)


def wrong(*options: str, image: str | None = "train:1", **more: str) -> str:
    with pytest.raises(Failure) as raised:
        job(*options, image=image, **more)
    return str(raised.value)


def run_as(rank: int, body: str, *arguments: str, tasks: int = 2, options: tuple[str, ...] = ()) -> str:
    """The output of a pod of the job, run by this machine's shell with all words as the kubelet would fill them."""
    asked = (f"--ntasks={tasks}", "--array=3-5", *options)
    made = read_script(script(*asked, body=body), "train.sh", (), (), arguments)
    return run_pod(spec_of(made), rank).stdout


def run_pod(spec: JobSpec, rank: int = 0) -> subprocess.CompletedProcess[str]:
    """One pod of the job, on this machine. Raises CalledProcessError."""
    command, env = pod_of(spec, rank)
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True)


def pod_of(spec: JobSpec, rank: int = 0, attempt: int = 1) -> tuple[list[str], dict[str, str]]:
    """Words and variables of a pod, as the kubelet would fill them in."""
    template = spec.roles[0].template
    env = {"TESSERA_JOB_ID": "j" * 20, "TESSERA_JOB_NUMBER": "17", "TESSERA_ATTEMPT": str(attempt)}
    env |= {"TESSERA_RANK": str(rank)}
    env |= {"PATH": "/usr/bin:/bin", "TESSERA_ARRAY_ID": "a" * 20, "TESSERA_ARRAY_TASK": "4"}
    for name, value in template.env.items():
        env[name] = expanded(value, env)
    return [expanded(word, env) for word in template.command], env
