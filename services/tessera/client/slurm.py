"""
Slurm's words read as ours: `#SBATCH` lines become a job, phases become state codes. Pure.

A pod is made for each task, so a job has `--nodes` times `--ntasks-per-node` equal pods that run the whole script. What
a line asks for and nothing here honours is refused by name and never passed over.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tessera.client import quantities
from tessera.client.outcomes import Exit, Failure, Refused
from tessera.client.submitting import name_of
from tessera_schemas.quantities import QuantityError
from tessera_schemas.reasons import Code, Reason

Json = dict[str, Any]
SCRIPT_CHARACTERS = 32_768
DEFAULT_CPU, DEFAULT_MEMORY = "1", "1Gi"

FLAGS = ("hold", "requeue", "no-requeue")
SHORT = {
    "J": "job-name",
    "p": "partition",
    "G": "gpus",
    "c": "cpus-per-task",
    "N": "nodes",
    "n": "ntasks",
    "t": "time",
    "q": "qos",
    "H": "hold",
    "a": "array",
    "o": "output",
    "e": "error",
    "d": "dependency",
}
KNOWN = (
    *("job-name", "partition", "gres", "gpus", "gpus-per-node", "cpus-per-task", "mem", "nodes", "ntasks"),
    *("ntasks-per-node", "time", "qos", "priority", "container-image", *FLAGS),
)
NOT_YET: Mapping[str, str] = {
    "array": "arrays are not there yet: submit one job for each index, with a --key of its own",
    "dependency": "jobs do not wait for other jobs yet: submit the next one when this one has ended (`--wait`)",
    "output": "what a job prints is in the log of its pods: delete the line, or say --ignore output",
    "error": "what a job prints is in the log of its pods: delete the line, or say --ignore error",
}
TIME_UNITS = {1: (60,), 2: (60, 1), 3: (3600, 60, 1)}
SHELLS = re.compile(r"^#!\s*(?:/usr/bin/env\s+)?(?P<path>\S+)(?P<options>(?:\s+-\S+)*)\s*$")


@dataclass(frozen=True, slots=True)
class Script:
    """A batch script: its options by their long names, and its text."""

    options: Json
    text: str
    asked: tuple[str, ...] = field(default=())


def read_script(text: str, where: str, ignored: Sequence[str] = ()) -> Script:
    """The options of the `#SBATCH` lines before the first command. Raises Refused naming all that are not honoured."""
    options: Json = {}
    against: list[Reason] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            for name, value in _words(line.removeprefix("#SBATCH"), f"{where}:{number}"):
                if name in KNOWN:
                    options[name] = value
                elif name not in ignored:
                    detail = NOT_YET.get(name, "nothing here honours it: delete it, or say --ignore " + name)
                    code = Code.NOT_SUPPORTED_YET if name in NOT_YET else Code.UNKNOWN_FIELD
                    against.append(Reason(code=code, field=f"line {number}: --{name}"[:300], detail=detail[:1024]))
    if against:
        raise Refused(tuple(against))
    return Script(options, text, tuple(options))


def _words(line: str, at: str) -> list[tuple[str, str]]:
    """Long options with their values, as `--name=value` or `--name value`; flags have none."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise Failure(Exit.USAGE, f"{at}: {error}; mend the quotes") from error
    found: list[tuple[str, str]] = []
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            name, given, value = word[2:].partition("=")
        elif word.startswith("-") and len(word) > 1:
            name, value = SHORT.get(word[1], word[1:2]), word[2:].removeprefix("=")
            given = value
        else:
            raise Failure(Exit.USAGE, f"{at}: {word!r} is no option; write --name=value")
        if name in FLAGS:
            value = "yes"
        elif not given:
            if not words or words[0].startswith("-"):
                if name not in KNOWN:
                    found.append((name, ""))  # it is refused by name, with all the others
                    continue
                raise Failure(Exit.USAGE, f"{at}: --{name} has no value; write --{name}=value")
            value = words.pop(0)
        found.append((name, value))
    return found


def job_of(script: Script, where: str, image: str | None, file_name: str) -> Json:
    """The job as a file of ours would say it. Raises Failure for a value that cannot be read."""
    asked = {name: str(value) for name, value in script.options.items()}
    image = asked.get("container-image") or image
    if not image:
        raise Failure(
            Exit.USAGE,
            f"{where}: no container image; add `#SBATCH --container-image=IMAGE`, or say --container-image, or set "
            "TESSERA_CONTAINER_IMAGE",
        )
    tasks, replicas = _tasks(asked, where)
    resources: Json = {"cpu": asked.get("cpus-per-task", DEFAULT_CPU), "memory": _memory(asked, tasks, where)}
    gpus, model = _gpus(asked, tasks, replicas, where)
    resources |= {"gpus": gpus} if gpus else {}
    role: Json = {"name": "worker", "replicas": replicas, "resources": resources}
    role |= {"gpu_models": [model]} if model else {}
    role["template"] = {"image": image, "command": command_of(script.text, where)}
    job: Json = {"name": _name(asked.get("job-name") or file_name), "roles": [role]}
    job |= {"queue": asked["partition"]} if "partition" in asked else {}
    priority = asked.get("qos") or asked.get("priority")
    job |= {"priority_class": priority} if priority else {}
    job |= {"time_limit_seconds": seconds_of(asked["time"], where)} if "time" in asked else {}
    job |= {"retry": {"max_attempts": 1}} if "no-requeue" in asked and "requeue" not in asked else {}
    return job


def command_of(text: str, where: str) -> list[str]:
    """The script as one argument of its own interpreter."""
    if len(text) > SCRIPT_CHARACTERS:
        raise Failure(
            Exit.USAGE, f"{where}: {len(text)} characters; at most {SCRIPT_CHARACTERS}: put the program into the image"
        )
    first = text.splitlines()[0] if text else ""
    match = SHELLS.match(first)
    if match is None:
        raise Failure(Exit.USAGE, f"{where}: does not begin with #! and an interpreter; write #!/bin/bash")
    path, options = match["path"], match["options"].split()
    if re.search(r"(?:^|/)(?:ba|da|z|k)?sh$|(?:^|/)python[0-9.]*$", path) is None:
        raise Failure(Exit.USAGE, f"{where}: cannot be run by {path}; use a shell or Python, and call {path} from it")
    return [path, *options, "-c", text]


def seconds_of(text: str, where: str) -> int:
    """Slurm's times: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes[:seconds]."""
    match = re.fullmatch(r"(?:([0-9]{1,4})-)?([0-9]{1,8})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?", text)
    if match is None:
        raise Failure(Exit.USAGE, f"{where}: --time={text}: write minutes, 90:00, 2:00:00 or 1-12:00:00")
    days, *rest = match.groups()
    parts = [int(part) for part in rest if part is not None]
    units = TIME_UNITS[3 if days is not None else len(parts)]
    seconds = int(days or 0) * 86_400 + sum(part * unit for part, unit in zip(parts, units, strict=False))
    if not seconds:
        raise Failure(Exit.USAGE, f"{where}: --time={text}: no time at all; leave it out for no limit")
    return seconds


def _tasks(asked: Mapping[str, str], where: str) -> tuple[int, int]:
    """Tasks of a node, and of the whole job."""
    nodes, tasks = _count(asked, "nodes", where), _count(asked, "ntasks-per-node", where)
    if "ntasks" not in asked:
        return tasks, nodes * tasks
    total = _count(asked, "ntasks", where)
    if total % nodes or ("ntasks-per-node" in asked and total != nodes * tasks):
        raise Failure(Exit.USAGE, f"{where}: --ntasks={total} do not lie evenly on {nodes} nodes; mend one of them")
    return total // nodes, total


def _gpus(asked: Mapping[str, str], tasks: int, replicas: int, where: str) -> tuple[int, str]:
    """GPUs of one pod and their model: `--gres` and `--gpus-per-node` count by node, `--gpus` for the whole job."""
    given = [name for name in ("gres", "gpus-per-node", "gpus") if name in asked]
    if not given:
        return 0, ""
    if len(given) > 1:
        raise Failure(Exit.USAGE, f"{where}: --{' and --'.join(given)}: say one of them")
    name = given[0]
    words = asked[name].split(":")
    if name == "gres":
        if words[0] != "gpu":
            raise Failure(Exit.USAGE, f"{where}: --gres={asked[name]}: write gpu:8 or gpu:h100:8")
        words = words[1:] or ["1"]
    model = words[0] if len(words) == 2 else ""
    if len(words) > 2 or not re.fullmatch(r"[0-9]{1,6}", words[-1]):
        raise Failure(Exit.USAGE, f"{where}: --{name}={asked[name]}: write a number, or model:number")
    total, pods = int(words[-1]), replicas if name == "gpus" else tasks
    if total % pods:
        of = "pods" if name == "gpus" else "tasks of a node"
        raise Failure(Exit.USAGE, f"{where}: --{name}={asked[name]}: {total} GPUs do not divide by {pods} {of}")
    return total // pods, model


def _memory(asked: Mapping[str, str], tasks: int, where: str) -> str | int:
    """`--mem` is megabytes of a node unless it says another unit; each pod gets its part of it."""
    if "mem" not in asked:
        return DEFAULT_MEMORY
    match = re.fullmatch(r"([0-9]{1,12})([KMGT]?)B?", asked["mem"].upper())
    if match is None:
        raise Failure(Exit.USAGE, f"{where}: --mem={asked['mem']}: write 64G, 512M or megabytes")
    try:
        return quantities.memory_bytes(f"{match[1]}{match[2] or 'M'}i") // tasks
    except QuantityError as error:
        raise Failure(Exit.USAGE, f"{where}: --mem={asked['mem']}: {error}") from error


def _count(asked: Mapping[str, str], name: str, where: str) -> int:
    text = asked.get(name, "1")
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise Failure(Exit.USAGE, f"{where}: --{name}={text}: write one number from 1 on")
    return int(text)


def _name(text: str) -> str:
    return name_of([text])


# -- what Slurm would call it

STATES: Mapping[str, str] = {
    "queued": "PD",
    "allocated": "CF",
    "binding": "CF",
    "running": "R",
    "evicting": "CG",
    "succeeded": "CD",
    "failed": "F",
    "cancelled": "CA",
}

WHY: Mapping[str, str] = {
    "WaitingForTurn": "Priority",
    "BehindQueueHead": "Priority",
    "BehindReservation": "Priority",
    "WaitingForQuota": "QOSGrpGRES",
    "NoFit": "Resources",
    "Reserved": "Resources",
    "NoNodes": "Nodes_required_are_DOWN",
    "WaitingForPreemptedWorkloads": "Resources",
    "Backoff": "BeginTime",
    "OnHold": "JobHeldUser",
    "QueueStopped": "PartitionDown",
    "NoSuchQueue": "PartitionDown",
}
"""Slurm's word for a reason to wait; others keep ours."""


def state_of(phase: str) -> str:
    """Slurm's code for a phase; where Slurm has none, the first two letters as capitals."""
    return STATES.get(phase, phase[:2].upper())


def elapsed(milliseconds: int) -> str:
    """`1-02:03:04`, `2:03:04` or `3:04`, as squeue prints a time."""
    total = max(0, milliseconds) // 1000
    days, rest = divmod(total, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{seconds:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def node_list(names: Sequence[str]) -> str:
    """`gpu-[1-3,7],other`: names that differ in their last number are put together."""
    stems: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        stem = re.sub(r"[0-9]+$", "", name)
        stems.setdefault(stem, []).append(name[len(stem) :])
    return ",".join(_folded(stem, numbers) for stem, numbers in sorted(stems.items()))


def _folded(stem: str, numbers: list[str]) -> str:
    if len(numbers) == 1:
        return stem + numbers[0]
    ranges: list[list[str]] = []
    for number in sorted(numbers, key=lambda text: (len(text), text)):
        last = ranges[-1][-1] if ranges else ""
        if last and number and len(last) == len(number) and int(number) == int(last) + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return f"{stem}[{','.join('-'.join(part) for part in ranges)}]"
