"""
The same script on both sides: by a real Slurm, and by ours, with programs that note how they are called.

Ours is read by the client, judged and placed by a shard's own committer, and run in pods that are processes with the
step runner. A script that calls `sbatch` itself is run where a user would run it.
"""

import json
import re
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tessera.client.input import files
from tessera.client.sending.submitting import command_bytes
from tessera.client.slurm.scripts.against import Against
from tessera.client.slurm.scripts.jobs import job_of, needs_steps
from tessera.client.slurm.scripts.layout import NodeSize
from tessera.client.slurm.scripts.options import split_words
from tessera.client.slurm.scripts.script import read_script
from tessera.client.slurm.values import Said, dependencies_of
from tessera.domain.entities import Job, Run
from tessera.domain.last_words import read_word
from tessera_local.free_port import free_port
from tessera_schemas.base import job_id
from tessera_schemas.commands import SubmitJob
from tessera_schemas.facts import RunEnded
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.reading import read_tenant_command
from tests.beside_slurm.cluster import CPUS, GPUS, MEMORY_MIB, MODEL, NODES, Slurm
from tests.builders import SHARD, admitted, node_seen, run_absent
from tests.kubelet import expanded
from tests.rounds import Rounds
from tests.steps.pods import PATIENCE_SECONDS, Pods

RECORD = Path(__file__).parent / "record.py"
PROGRAMS = ("prepare", "train", "report", "python", "torchrun", "hostname")
ARGUMENTS = ("data/one", "two words")
FIRST_JOB = 9000
"""Numbers of jobs begin behind it, so that they are no other numbers of a script."""
MIB, NOW = 1 << 20, datetime(2030, 1, 1, tzinfo=UTC)
SLURM_NAMES = (
    "PROCID LOCALID NODEID NTASKS NPROCS NNODES JOB_NUM_NODES TASKS_PER_NODE NTASKS_PER_NODE CPUS_PER_TASK JOB_NAME"
)
SLURM_NAMES += (
    " STEP_ID STEP_NUM_TASKS STEP_NUM_NODES STEP_TASKS_PER_NODE GPUS GPUS_PER_NODE GPUS_PER_TASK GPUS_ON_NODE JOB_GPUS"
)
SLURM_NAMES += (
    " STEP_GPUS MEM_PER_NODE MEM_PER_CPU MEM_PER_GPU CPUS_PER_GPU ARRAY_TASK_ID ARRAY_TASK_COUNT ARRAY_TASK_MIN"
)
SLURM_NAMES += " ARRAY_TASK_MAX ARRAY_TASK_STEP RESTART_COUNT"
COMPARED = {f"SLURM_{name}" for name in SLURM_NAMES.split()} | {"SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES"}
"""Variables of Slurm's that both sides must have alike; those of a script's own all are."""
NOT_READ = "OWN_SWEEP"
"""Of the shell that submits: here it goes along only where a script reads it."""


@dataclass
class Seen:
    """What a side did: calls of programs, what it says of each job, and the files that were made."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, list[str]] = field(default_factory=dict)
    refused: str = ""


def prepared(folder: Path, script: Path) -> dict[str, str]:
    """Folders of a side, the script in one of them, programs that note; returns the environment of a user there."""
    for name in ("records", "cwd", "programs"):
        (folder / name).mkdir(parents=True)
    (folder / "cwd" / script.name).write_text(script.read_text())
    for name in PROGRAMS:
        (folder / "programs" / name).write_text(f"#!{sys.executable} -SE\n{RECORD.read_text()}")
        (folder / "programs" / name).chmod(0o755)
    own = {"HOME": str(folder), "USER": "ada", "LANG": "C", "OWN_SWEEP": "of this shell"}
    return own | {"PATH": f"{folder / 'programs'}:/usr/bin:/bin", "RECORDS": str(folder / "records")}


def submits(script: Path) -> bool:
    """Whether it calls `sbatch` itself."""
    return re.search(r"^[^#\n]*\bsbatch\b", script.read_text(), re.MULTILINE) is not None


def gathered(folder: Path, ids: Mapping[str, str], hosts: Mapping[str, str], script: str) -> Seen:
    """What was noted, with names of nodes, jobs and folders that both sides have alike."""
    known = {str(folder / "cwd"): "CWD", **hosts}

    def alike(text: str) -> str:
        for name, other in known.items():
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z])", lambda _, other=other: other, text)
        return re.sub(r"(?<![\w.])(\d+)(?![\w.])", lambda found: ids.get(found[0], found[0]), text)

    seen = Seen()
    for path in sorted((folder / "records").iterdir()):
        call = json.loads(path.read_text())
        kept = {k: v for k, v in call["environment"].items() if k in COMPARED or not k.startswith(("SLURM", NOT_READ))}
        call["environment"] = {name: alike(value) for name, value in kept.items()}
        if call["environment"].get("SLURM_JOB_NUM_NODES") == "1":  # on which of two it lies is the scheduler's
            call["environment"]["SLURMD_NODENAME"] = "NODE0"
        call["arguments"] = [alike(each) for each in call["arguments"]]
        seen.calls.append(call | {"folder": alike(call["folder"])})
    for path in sorted((folder / "cwd").iterdir()):
        if path.name != script and not path.name.startswith("slurm-"):
            lines = path.read_text().splitlines()
            seen.files[re.sub(r"\d+", lambda found: ids.get(found[0], found[0]), path.name)] = sorted(map(alike, lines))
    return seen


def by_slurm(slurm: Slurm, script: Path, folder: Path) -> Seen:
    """The script by a real Slurm, once all of its jobs have ended."""
    environment = prepared(folder, script)
    environment["PATH"] = f"{folder / 'programs'}:{slurm.bin}:/usr/bin:/bin"
    before = {job["JobId"] for job in slurm.jobs()}
    words = ["bash", script.name] if submits(script) else ["sbatch", script.name, *ARGUMENTS]
    done = subprocess.run(words, cwd=folder / "cwd", env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return Seen(refused=done.stderr.strip())
    slurm.wait()
    jobs = [job for job in slurm.jobs() if job["JobId"] not in before]
    first = sorted({int(job.get("ArrayJobId", job["JobId"])) for job in jobs})
    ids = {str(job): f"JOB{place}" for place, job in enumerate(first, 1)}
    seen = gathered(folder, ids, {"n[1-2]": "NODE[0-1]", "n1": "NODE0", "n2": "NODE1"}, script.name)
    for job in jobs:
        each = mebibytes(job.get("MinMemoryCPU", "0")) * int(job["NumCPUs"])
        seen.jobs.append(
            {
                "name": job["JobName"],
                "limit": seconds(job["TimeLimit"]),
                "nodes": (nodes := int(job["NumNodes"].partition("-")[0])),
                "gpus": count(job, "TresPerJob")
                or count(job, "TresPerNode") * nodes
                or count(job, "TresPerTask") * int(job["NumTasks"].strip("N/A") or 0),
                "memory_of_node": mebibytes(job.get("MinMemoryNode", "0")) + each // nodes,
                "code": int(job["ExitCode"].partition(":")[0]),
                "end": job["JobState"],
            }
        )
    return seen


def count(job: Mapping[str, str], name: str) -> int:
    """Of `gres:gpu:h100:4`."""
    return int(re.findall(r"\d+$", job.get(name, "").strip() or "0")[0])


def seconds(limit: str) -> int | None:
    """Of `2-01:00:00`; none is UNLIMITED, or a year."""
    days, _, rest = limit.rpartition("-")
    parts = rest.split(":")
    if len(parts) < 3 or days == "365":
        return None
    return int(days or 0) * 86400 + sum(int(part) * 60**power for power, part in enumerate(reversed(parts)))


def mebibytes(text: str) -> int:
    """Of `16G` or `500M`."""
    unit = {"G": 1024, "M": 1, "T": 1 << 20}.get(text[-1])
    return int(text) if unit is None else round(float(text[:-1]) * unit)


@dataclass
class Ours:
    """Our side of one script: a shard, the specs of its jobs by id, and the pods that run."""

    program: Path
    folder: Path
    environment: Mapping[str, str]
    rounds: Rounds
    specs: dict[str, Any] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)

    def submit(self, words: list[str]) -> str:
        """As `sbatch` with these words does; returns why it is refused, else nothing."""
        said, rest = split_words(words)
        wrapped = dict(said).get("wrap")
        text = f"#!/bin/sh\n{wrapped}\n" if wrapped else (self.folder / "cwd" / rest[0]).read_text()
        script = read_script(
            text, rest[0] if rest else "wrap", (), [each for each in said if each[0] != "wrap"], tuple(rest[1:])
        )
        against = Against(script)
        room = NodeSize(CPUS * 1000, MEMORY_MIB * MIB, GPUS, MODEL)
        job = job_of(
            script, "image", self.environment, NOW, against, [room] * len(NODES) if needs_steps(script) else None
        )
        if against.error is not None:
            return str(against.error)
        spec = files.job_spec(job, script.where) | {"queue": "research", "priority_class": "normal"}
        ids = list(self.specs)
        if waits := script.options.get("dependency"):
            named = dependencies_of(Said(script.where, "dependency", waits))
            spec["after"] = [
                {"condition": condition} | ({"job": ids[int(on) - FIRST_JOB - 1]} if on else {})
                for condition, on in named
            ]
        key = f"k{len(ids)}"
        read = read_tenant_command(command_bytes({"kind": "submit_job", "spec": spec}, key, "lab"))
        if not isinstance(read.command, SubmitJob):
            return str(read.reasons)
        self.specs[job_id(SHARD, "lab", key)] = read.command.spec
        self.rounds.commit(admitted(key, read.command.spec))
        return ""

    def run_all(self) -> None:
        """Until no job waits or runs any more."""
        for _ in range(64):
            self.rounds.settle()
            state = self.rounds.state
            if runs := list(state.runs.values()):
                self.end(runs[0])
            elif waiting := [job.not_before for job in state.jobs.values() if job.not_before]:
                self.rounds.commit(ms=max(1000, min(waiting) - self.rounds.ts))
            else:
                return
        raise AssertionError("jobs do not come to an end")

    def end(self, run: Run) -> None:
        """Runs the pods of a run, and says how it ended."""
        job = self.rounds.state.jobs.get(run.job_id)
        code, word = self.pods(job, run)
        self.codes[run.job_id] = code
        asked = None if word is None else word.ask
        reason = Reason(code=asked or Code.POD_FAILED, numbers={"exit_code": code}) if code else None
        own = reason is not None and asked is None
        self.rounds.commit(
            RunEnded(kind="run_ended", run_id=run.run_id, reason=reason, own=own, exit_code=code or None)
        )
        self.rounds.commit(run_absent(run.run_id))

    def pods(self, job: Job, run: Run) -> tuple[int, Any]:
        """The exit code of the first pod, and its last word."""
        spec = self.specs[job.task_of or run.job_id]
        key, word = self.folder / "key", self.folder / f"word-{run.run_id}"
        key.write_bytes(secrets.token_bytes(32))
        word.touch()
        pods, template = Pods(self.folder, run.job_id), spec.roles[0].template
        common = dict(self.environment) | {
            "PATH": f"{self.program.parent}:{self.environment['PATH']}",
            "TESSERA_JOB_ID": run.job_id,
            "TESSERA_JOB_NUMBER": str(FIRST_JOB + job.number),
            "TESSERA_ATTEMPT": str(run.attempt),
            "TESSERA_WORLD_SIZE": str(len(run.placements)),
            "TESSERA_ARRAY_TASK": str(job.task),
            "TESSERA_ARRAY_ID": job.task_of,
            "TESSERA_ARRAY_NUMBER": str(FIRST_JOB + job.array_number),
            "TESSERA_STEPS_HOSTS": pods.host(0).removesuffix("0") + "{rank}",
            "TESSERA_STEPS_PORT": str(free_port()),
            "TESSERA_STEPS_KEY": str(key),
            "TESSERA_STEPS_LAST_WORD": str(word),
        }
        del common["OWN_SWEEP"]  # a pod has what the job hands on alone
        front = [str(self.program), "pod", "--"] if spec.launcher == "steps" else []
        host = pods.host(0).removesuffix("0")
        try:
            for rank in range(len(run.placements)):
                known = common | {"TESSERA_RANK": str(rank)}
                as_kubelet = lambda text, known=known: expanded(  # noqa: E731
                    text.replace("$(TESSERA_JOB_ID)-$(TESSERA_ATTEMPT)-", host), known
                )
                env = known | {name: as_kubelet(str(value)) for name, value in template.env.items()}
                words = [*front, *map(as_kubelet, template.command)]
                with (self.folder / f"log-{run.run_id}-{rank}").open("wb") as log:
                    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                    pods.pods.append(subprocess.Popen(words, cwd=self.folder / "cwd", env=env, **streams))
            code = pods.pods[0].wait(PATIENCE_SECONDS)
            for pod in pods.pods[1:]:
                pod.wait(PATIENCE_SECONDS)
        finally:
            pods.kill()
        return code, read_word(word.read_text())


def by_us(program: Path, script: Path, folder: Path) -> Seen:
    """The script by ours; what is refused says why."""
    environment = prepared(folder, script)
    size = {"cpu_milli": CPUS * 1000, "memory_bytes": MEMORY_MIB * MIB, "gpu_model": MODEL}
    rounds = Rounds(nodes=[node_seen(name, GPUS, **size) for name in NODES])
    ours = Ours(program, folder, environment, rounds)
    for words in submitted(script, folder, environment):
        if refused := ours.submit(words):
            return Seen(refused=refused)
    ours.run_all()
    ids = {str(FIRST_JOB + place): f"JOB{place}" for place in range(1, len(ours.specs) + 1)}
    seen = gathered(folder, ids, {"127.88.0.[0-1]": "NODE[0-1]", "127.88.0.": "NODE"}, script.name)
    ends = {"succeeded": "COMPLETED", "failed": "FAILED", "cancelled": "CANCELLED"}
    for job in ended(rounds):
        spec = ours.specs[job.task_of or job.job_id]
        role, asked = spec.roles[0], spec.roles[0].resources
        seen.jobs.append(
            {
                "name": spec.name,
                "limit": spec.time_limit_seconds or None,
                "nodes": role.replicas,
                "gpus": asked.gpus * role.replicas,
                "memory_of_node": asked.memory_bytes // MIB,
                "code": ours.codes.get(job.job_id, 0),
                "end": ends[job.phase.value],
            }
        )
    return seen


def ended(rounds: Rounds) -> Iterable[Any]:
    """Jobs that have ended; of an array its tasks."""
    found = list(rounds.state.ended.values())
    arrays = {job.task_of for job in found if job.task_of}
    return [job for job in found if job.job_id not in arrays]


def submitted(script: Path, folder: Path, environment: Mapping[str, str]) -> list[list[str]]:
    """The words of each `sbatch`: the one for this script, or those that it calls, which are answered by number."""
    if not submits(script):
        return [[script.name, *ARGUMENTS]]
    tool, asked = folder / "programs" / "sbatch", folder / "asked"
    note = r'printf "%s\0" "$@" >>"$asked"; printf "\n" >>"$asked"; number=$(($(wc -l <"$asked") + FIRST))'.replace(
        "FIRST", str(FIRST_JOB)
    )
    answer = 'case "$*" in *--parsable*) echo "$number" ;; *) echo "Submitted batch job $number" ;; esac'
    tool.write_text(f"#!/bin/bash\nasked={asked}\n{note}\n{answer}\n")
    tool.chmod(0o755)
    subprocess.run(
        ["bash", script.name], cwd=folder / "cwd", env=dict(environment), check=True, stdout=subprocess.DEVNULL
    )
    return [line.removesuffix("\0").split("\0") for line in asked.read_text().splitlines()]


def differences(slurm: Seen, ours: Seen) -> list[str]:
    """A line for each thing that one side did or has, and the other did not."""
    if slurm.refused or ours.refused:
        return [] if slurm.refused and ours.refused else [f"refused: Slurm {slurm.refused!r}, ours {ours.refused!r}"]
    found = []
    for kind in ("calls", "jobs"):
        mine, theirs = (
            Counter(json.dumps(each, sort_keys=True) for each in getattr(side, kind)) for side in (ours, slurm)
        )
        found += [f"{kind}: Slurm alone: {each}" for each in (theirs - mine).elements()]
        found += [f"{kind}: ours alone:  {each}" for each in (mine - theirs).elements()]
    if slurm.files != ours.files:
        found.append(f"files: Slurm {slurm.files}, ours {ours.files}")
    return found


def without(seen: Seen, *names: str) -> Seen:
    """The same without variables in which the sides may differ: who came first, of steps side by side."""
    for call in seen.calls:
        for name in names:
            call["environment"].pop(name, None)
    return seen
