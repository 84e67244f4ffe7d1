"""What becomes of a batch script as a whole, where each of several pods runs it and none has a cluster's software."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from tessera.client.slurm.scripts.against import Lost, Tasks
from tessera.client.slurm.scripts.shell_words import Simple

_LAUNCHED = re.compile(r"\b(?:srun|torchrun|torch\.distributed)\b")
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
TALKS = frozenset({"echo", "printf", "which", "type", "hash", "export", "unset", "for", "case", "[", "[[", "test"})
TALKS |= {"module", "ml", "spack"}
"""Commands that may have the word `srun` and run nothing."""
AWAY = frozenset({"sbatch", "salloc", "squeue", "scancel", "sacct", "sinfo", "sstat", "sbcast", "sattach", "seff"})
_THE_SAME = (
    TALKS | AWAY | {"srun", "torchrun", "scontrol", "set", "cd", "source", ".", "wait", "exit", "trap", "ulimit"}
)
_THE_SAME |= {"conda", "true", ":", "done", "fi", "esac", "}", "shift", "in", "sleep", "clear"}
_THE_SAME |= {"date", "env", "printenv", "mkdir", "ls", "pwd", "pushd", "popd", "nvidia-smi", "whoami"}
_THE_SAME |= {"read", "local", "declare", "shopt", "return", "break", "continue"}
_THE_SAME |= {"head", "tail", "sed", "awk", "grep", "cut", "sort", "tr", "wc", "cat", "tee", "uniq", "paste"}
"""Commands that do the same in each pod, or are judged by themselves."""
_OF_THE_CLUSTER = {
    **dict.fromkeys(("module", "ml", "spack"), "software is the image's: no pod has a cluster's modules"),
    **dict.fromkeys(("conda", "mamba", "micromamba"), "environments are the image's: none of this machine is in a pod"),
}
MPI = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun"})
_THE_SAME |= MPI
FAR = frozenset({"ssh", "rsh", "pdsh", "clush", "pssh", "parallel-ssh", "horovodrun"})
"""Programs that start others on further nodes by a login there."""
_THE_SAME |= FAR
_MPI_TYPE = re.compile(r"^[ \t]*(?:export[ \t]+)?SLURM_MPI_TYPE=(?!none\b)", re.MULTILINE)
_OWN_ADDRESS = re.compile(
    r"^[ \t]*(?:export[ \t]+)?(?P<name>\w*(?:MASTER|HEAD|ADDR|RDZV)\w*)=[\"']?(?:\$\(|`)\s*(?:/bin/)?hostname\b",
    re.MULTILINE | re.IGNORECASE,
)
_PROCESSES = re.compile(r"--nproc[_-]per[_-]node[= ]+(?P<number>[0-9]+)|--standalone\b")
ADDRESS = "the first pod's address is $(scontrol show hostnames | head -n 1)"
NO_LOGIN = "no pod lets another log in, and each runs this; write srun, which starts a command in each task's pod"
ONE_POD = "MPI does not go beyond a pod, and each task is one: ask for one task, with --cpus-per-task for its ranks"


def software_of_a_cluster(commands: Sequence[Simple]) -> list[Lost]:
    """Commands that bring software of a cluster, each once."""
    first = {command.name: command.line for command in reversed(commands) if command.name in _OF_THE_CLUSTER}
    return [Lost(line, f"{name}: {_OF_THE_CLUSTER[name]}", refused=False, about=name) for name, line in first.items()]


def lost_in_parts(text: str, commands: Sequence[Simple], tasks: Tasks, has_mpi: bool) -> Iterator[Lost]:
    """Parts of a script's meaning that are lost where it runs in the pods of several tasks."""
    text = _COMMENT.sub("", text)
    if _LAUNCHED.search(text):
        yield from _in_every_pod(commands)
        yield from _launched_alone(text, tasks)
    elif not has_mpi:
        yield _refuse_unstarted(commands, tasks)
    for found in _MPI_TYPE.finditer(text):
        yield Lost(_line_of(text, found), f"SLURM_MPI_TYPE: {ONE_POD}")
    for found in _OWN_ADDRESS.finditer(text):
        said = f"{found['name']}=$(hostname): is another one in each pod; {ADDRESS}, as MASTER_ADDR has it already"
        yield Lost(_line_of(text, found), said)
    for step, then in pairwise(commands):
        if step.name == "srun" and step.piped and then.name not in ("tee", "cat"):
            said = f"srun … | {then.name}: each pod has the output of its own task alone"
            yield Lost(step.line, said, refused=False)


def _launched_alone(text: str, tasks: Tasks) -> Iterator[Lost]:
    """`torchrun` without `srun` that says how many processes it starts: Slurm starts it once, here each pod does."""
    launched = _LAUNCHED.search(text)
    if launched is None or re.search(r"\bsrun\b", text):
        return
    processes = _PROCESSES.search(text)
    if processes is not None and (processes["number"] is None or int(processes["number"]) > tasks.gpus > 0):
        said = f"{launched[0]} {processes[0].strip()}: runs in the pod of each of {tasks.in_all} tasks"
        way_out = "ask for one task of a node (--ntasks-per-node=1) with all its GPUs, or leave that to torchrun"
        yield Lost(_line_of(text, launched), f"{said}, with {tasks.gpus} GPUs; {way_out}")


def _line_of(text: str, found: re.Match[str]) -> int:
    return text.count("\n", 0, found.end()) + 1


def _refuse_unstarted(commands: Sequence[Simple], tasks: Tasks) -> Lost:
    """A script of several tasks that starts none of them: Slurm runs it once."""
    way_out = "write srun before what each task runs, or ask for one task (CPUs are --cpus-per-task)"
    first = [command for command in commands if command.line == commands[0].line][-1:]
    line, what = (first[0].line, f"{first[0].words[0]} and what follows") if first else (1, "it")
    return Lost(line, f"{what} would run in the pod of each of {tasks.in_all} tasks; {way_out}")


def _in_every_pod(commands: Sequence[Simple]) -> list[Lost]:
    """The first command beside `srun` that may do or say something else in each pod."""
    said = (each for each in commands if each.words[0].rpartition("/")[2] not in _THE_SAME)
    return [Lost(each.line, f"{each.words[0]}: runs in every pod, beside srun", refused=False) for each in said][:1]
