"""
Meanings of Slurm's commands in a batch script that no pod has: found by name and line before it is submitted.

Each is refused, or said in a note. What the script makes only as it runs is for the functions in the pod to refuse.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from tessera.client.slurm import srun
from tessera.client.slurm.pods import is_shell
from tessera.client.slurm.shell_words import Simple, simple_commands
from tessera.client.slurm.srun import StepKind

_LAUNCHED = re.compile(r"\b(?:srun|torchrun|torch\.distributed)\b")
_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
_TALKS = frozenset({"echo", "printf", "which", "type", "hash", "module", "export", "unset", "for", "case", "[", "test"})
"""Commands that may have the word `srun` and run nothing."""
_AWAY = frozenset({"sbatch", "salloc", "squeue", "scancel", "sacct", "sinfo", "sstat", "sbcast", "sattach", "seff"})
_THE_SAME = (
    _TALKS | _AWAY | {"srun", "torchrun", "scontrol", "set", "cd", "source", ".", "wait", "exit", "trap", "ulimit"}
)
_THE_SAME |= {"conda", "true", ":", "done", "fi", "esac", "}", "shift", "in", "sleep", "clear"}
_THE_SAME |= {"head", "tail", "sed", "awk", "grep", "cut", "sort", "tr", "wc", "cat", "tee", "uniq", "paste"}
"""Commands that do the same in each pod, or are judged by themselves."""
_LINES_OF_THEIR_OWN = frozenset({"trap", "eval"})


@dataclass(frozen=True, slots=True)
class Lost:
    """A sentence about a line of a script and the command that it is about; a note unless `refused`."""

    line: int
    said: str
    refused: bool = True
    about: str = "srun"


@dataclass(frozen=True, slots=True)
class Tasks:
    """The job's tasks, each of which is a pod, and how many of them a node has as the job says it."""

    in_all: int
    of_a_node: int = 1


def found_in(text: str, tasks: Tasks) -> list[Lost]:
    """All that the script's commands mean and no pod does, in the order of its lines."""
    commands = list(simple_commands(text)) if is_shell(text) else []
    found = [each for command in commands for each in _judged(command, tasks)]
    if tasks.in_all > 1:
        found += (
            [_refuse_unstarted(commands, tasks)]
            if not _LAUNCHED.search(_COMMENT.sub("", text))
            else _in_every_pod(commands)
        )
    return sorted(dict.fromkeys(found), key=lambda each: each.line)


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


def _judged(command: Simple, tasks: Tasks) -> Iterator[Lost]:
    name, *words = (command.words[0].rpartition("/")[2], *command.words[1:])
    if name == "srun":
        yield from _step(command, words, tasks)
    elif name == "scontrol":
        yield from _scontrol(command.line, words)
    elif name in _AWAY:
        yield Lost(command.line, f"{name}: is not there in a pod, so it fails", refused=False, about=name)
    elif name in _LINES_OF_THEIR_OWN and words:
        for inner in simple_commands(words[0], command.line):
            yield from _judged(inner, tasks)
    elif name not in _TALKS and not (name == "command" and words[:1] == ["-v"]):
        yield from _behind(command.line, name, words)


def _behind(line: int, name: str, words: Sequence[str]) -> Iterator[Lost]:
    """`srun` that another program is to start: it is a function of the script's shell, so it would not be found."""
    if any(word.rpartition("/")[2] == "srun" for word in words):
        way_out = "leave exec out" if name == "exec" else f"write srun {name} …"
        yield Lost(line, f"{name} srun: no other program finds srun in a pod; {way_out}")
    elif any(flag.startswith("-") and flag.endswith("c") and _runs_srun(word) for flag, word in pairwise(words)):
        yield Lost(line, f"srun within {name} -c: only the script's own shell has it; write srun {name} -c …")


def _runs_srun(text: str) -> bool:
    return any(command.words[0].rpartition("/")[2] == "srun" for command in simple_commands(text))


def _scontrol(line: int, words: Sequence[str]) -> Iterator[Lost]:
    asked = [word for word in words if not word.startswith("-")]
    if asked[:1] == ["show"]:
        if not "hostnames".startswith((asked[1:] or [""])[0]) or len(asked) < 2:
            yield Lost(
                line, f"scontrol {' '.join(asked[:2])}: only show hostnames is there in a pod", False, "scontrol"
            )
    elif asked[:1] == ["requeue"]:
        way_out = "delete it: what others stop is queued again by itself, after SIGTERM (--signal)"
        yield Lost(line, f"scontrol requeue: is not there in a pod; {way_out}", about="scontrol")
    elif asked:
        yield Lost(line, f"scontrol {asked[0]}: only show hostnames is there in a pod; delete it", about="scontrol")


# -- a step -----------------------------------------------------------------------------------------------------------


def _step(command: Simple, words: Sequence[str], tasks: Tasks) -> Iterator[Lost]:
    line, (said, program) = command.line, split_step(words)
    if ":" in program:
        yield Lost(line, "srun … : …: several programs in one step are not there; write roles of a job file")
    refusals = [(_shown(*each), why) for each in said if (why := _refusal(*each, tasks)) is not None]
    yield from (Lost(line, f"srun {shown}: {why}") for shown, why in refusals)
    noted = [option for option, _ in said if _known(option).kind is StepKind.NOTED]
    for why, options in groupby(sorted(noted, key=_why), key=_why):
        names = ", ".join(dict.fromkeys(options))
        yield Lost(line, f"srun {names}: {why}", refused=False)
    if not refusals:
        yield from _few(command, dict(said), tasks)


def _few(command: Simple, said: dict[str, str], tasks: Tasks) -> Iterator[Lost]:
    """A step of fewer tasks than the job has, as far as that is said outright."""
    counts = {
        known.name: value for option, value in said.items() if (known := _known(option)).kind is StepKind.HONOURED
    }
    asked, of_each = counts.get("ntasks"), 1
    if asked is None:
        asked, of_each = counts.get("nodes", ""), tasks.of_a_node
    if not asked.isdecimal() or int(asked) * of_each >= tasks.in_all:
        return
    if command.background:
        way_out = "write jobs of their own, an array, or roles of a job file"
        yield Lost(command.line, f"srun … &: steps beside each other would all run in the first pods; {way_out}")
    else:
        yield Lost(command.line, "srun: the pods of other tasks do not wait for this step", refused=False)


def _why(option: str) -> str:
    return _known(option).why


def _shown(option: str, value: str) -> str:
    return option if not value else f"{option}={value}" if option.startswith("--") else f"{option} {value}"


def _known(option: str) -> srun.StepOption:
    return srun.KNOWN.get(option, srun.UNKNOWN)


def _refusal(option: str, value: str, tasks: Tasks) -> str | None:
    known, is_literal = _known(option), not re.search(r"[$`]", value)
    if known.kind is StepKind.REFUSED:
        return known.why
    if known.kind is not StepKind.HONOURED or not is_literal:
        return None
    if known.name == "jobid":
        return "a script's steps are its own job's: delete it, or write $SLURM_JOB_ID"
    if known.name == "export" and value != "ALL":
        return "a step has the variables of its script: export NAME=VALUE before it, or unset NAME"
    if known.name == "mpi" and tasks.in_all > 1 and value != "none":
        return "MPI does not go beyond a pod: mpirun in a job of one task"
    if known.name in ("ntasks", "nodes", "ntasks-per-node"):
        return _refused_number(known.name, value, tasks)
    return None


def _refused_number(name: str, value: str, tasks: Tasks) -> str | None:
    if not re.fullmatch(r"[1-9][0-9]{0,5}", value):
        return "write one number from 1 on"
    most = tasks.in_all // tasks.of_a_node if name == "nodes" else tasks.in_all
    return None if int(value) <= most else f"the job has {most}; ask for more of them in an #SBATCH line"


def split_step(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Options of a step as they are written, with their values, and the words of its program, as in a pod."""
    left, found = list(words), list[tuple[str, str]]()
    while left and left[0].startswith("-") and len(left[0]) > 1:
        word = left.pop(0)
        if word == "--":
            break
        name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        if not equals and not _known(name).flag and left:
            value = left.pop(0)
        found.append((name, value))
    return found, left
