"""
Meanings of Slurm's commands in a batch script that no pod has: found by name and line before it is submitted.

Each is refused, or said in a note. What the script makes only as it runs is for the functions in the pod to refuse.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise

from tessera.client.slurm.scripts import srun
from tessera.client.slurm.scripts.against import Lost, Tasks
from tessera.client.slurm.scripts.in_parts import (
    ADDRESS,
    AWAY,
    FAR,
    MPI,
    NO_LOGIN,
    ONE_POD,
    TALKS,
    lost_in_parts,
    software_of_a_cluster,
)
from tessera.client.slurm.scripts.pods import is_shell
from tessera.client.slurm.scripts.shell_words import Simple, simple_commands
from tessera.client.slurm.scripts.srun import StepKind

_LINES_OF_THEIR_OWN = frozenset({"trap", "eval"})
_STEPS_BY_NAME = re.compile(r"(?<![\w$])(?P<name>\w+)=[\"']?(?:/\S*/)?srun(?=[\s\"';]|$)", re.MULTILINE)
_FUNCTIONS = re.compile(r"(?:^|[;{\s])(?:function\s+(?P<named>[\w-]+)|(?P<plain>[\w-]+)\s*\(\s*\))", re.MULTILINE)
_FOR_EACH_LINE = frozenset({"parallel", "xargs"})


@dataclass(frozen=True, slots=True)
class _Shell:
    """What the script's own shell knows: variables that begin a step, and its functions, which find `srun`."""

    steps: frozenset[str]
    functions: frozenset[str]

    def has_step(self, word: str, *, quoted: bool) -> bool:
        """Whether a word of another command is a step; `quoted`: or a command line that begins with one."""
        first = word.split(maxsplit=1)[0] if word.strip() else ""
        variable = re.fullmatch(r"\$\{?(\w+)\}?", first)
        named = first.rpartition("/")[2] == "srun" and (quoted or first == word)
        return named or (variable is not None and variable[1] in self.steps)


def _shell_of(text: str) -> _Shell:
    functions = {found["named"] or found["plain"] for found in _FUNCTIONS.finditer(text)}
    return _Shell(frozenset(found["name"] for found in _STEPS_BY_NAME.finditer(text)), frozenset(functions))


def found_in(text: str, tasks: Tasks) -> list[Lost]:
    """All that the script's commands mean and no pod does, in the order of its lines."""
    commands, shell = list(simple_commands(text)) if is_shell(text) else [], _shell_of(text)
    found = [each for command in commands for each in _judged(command, tasks, shell)]
    found += software_of_a_cluster(commands)
    if tasks.in_all > 1:
        found += lost_in_parts(text, commands, tasks, any(each.about == "mpirun" for each in found))
    return sorted(dict.fromkeys(found), key=lambda each: each.line)


def lost_to_steps(text: str) -> list[Lost]:
    """All that the commands of a script mean and no pod does, where the script runs once and its tasks by steps."""
    commands = list(simple_commands(text)) if is_shell(text) else []
    found = [each for command in commands for each in _lost_to_steps(command)]
    return sorted(dict.fromkeys(found + software_of_a_cluster(commands)), key=lambda each: each.line)


_OF_A_RUNNER = frozenset({"squeue", "scancel"})
_SHOWN_BY_A_RUNNER = ("jobs", "jobid", "JobId", "hostnames", "hostlist")


def _lost_to_steps(command: Simple) -> Iterator[Lost]:
    name, words = command.name, command.words[1:]
    if name == "srun":
        for option, value in split_step(words)[0]:
            if (way_out := srun.refused_by_runner(option, value)) is not None:
                yield Lost(command.line, f"srun {_shown(option, value)}: {way_out}")
    elif name == "scontrol":
        yield from _scontrol_of_a_runner(command.line, words)
    elif name not in _OF_A_RUNNER:
        yield from _lost_to_pods(command, words, _lost_to_steps)


def _scontrol_of_a_runner(line: int, words: Sequence[str]) -> Iterator[Lost]:
    asked = [word for word in words if not word.startswith("-")]
    shown = (asked[1:] or [""])[0].partition("=")[0]
    known = asked[:1] == ["show"] and shown and any(each.startswith(shown) for each in _SHOWN_BY_A_RUNNER)
    if asked and asked[:1] != ["requeue"] and not known:
        here = "only show job, show hostnames, show hostlist and requeue are there in a pod"
        yield Lost(line, f"scontrol {' '.join(asked[:2])}: {here}", asked[:1] != ["show"], "scontrol")


def _lost_to_pods(command: Simple, words: Sequence[str], judge: Callable[[Simple], Iterator[Lost]]) -> Iterator[Lost]:
    """Meanings that no pod has, whatever starts the tasks; `judge` takes commands that a shell keeps for later."""
    if command.name == "scontrol":
        yield from _scontrol(command.line, words)
    elif command.name in AWAY:
        said, submits = f"{command.name}: is not there in a pod", command.name in ("sbatch", "salloc")
        said += (
            "; submit from your own machine, what waits for other jobs by --dependency" if submits else ", so it fails"
        )
        yield Lost(command.line, said, refused=submits, about=command.name)
    elif command.name in _LINES_OF_THEIR_OWN and words:
        for inner in simple_commands(words[0], command.line):
            yield from judge(inner)


def _mpi_of(name: str, words: Sequence[str]) -> str:
    """The program that starts the ranks of an MPI job, as the command or behind others; "" for none."""
    bases = [name, *(word.rpartition("/")[2] for word in words)]
    return next((base for base in bases if base in MPI), "")


def _judged(command: Simple, tasks: Tasks, shell: _Shell) -> Iterator[Lost]:
    name, *words = (command.words[0].rpartition("/")[2], *command.words[1:])
    if tasks.in_all > 1 and name not in TALKS and (launcher := _mpi_of(name, words)):
        yield Lost(command.line, f"{launcher}: {ONE_POD}", about="mpirun")
    if tasks.in_all > 1 and name in FAR:
        yield Lost(command.line, f"{name}: {NO_LOGIN}", about=name)
    elif name == "srun":
        yield from _step(command, words, tasks)
    elif name == "scontrol" or name in AWAY or (name in _LINES_OF_THEIR_OWN and words):
        yield from _lost_to_pods(command, words, partial(_judged, tasks=tasks, shell=shell))
    elif name not in TALKS | shell.functions and not (name == "command" and words[:1] == ["-v"]):
        yield from _behind(command.line, name, words, shell)


def _behind(line: int, name: str, words: Sequence[str], shell: _Shell) -> Iterator[Lost]:
    """`srun` that another program is to start: it is a function of the script's shell, so it would not be found."""
    each_line = name.strip("${}") in _FOR_EACH_LINE
    commands = [word for flag, word in pairwise(words) if flag.startswith("-") and flag.endswith("c")]
    if any(_runs_srun(word) or shell.has_step(word, quoted=True) for word in commands):
        yield Lost(line, f"srun within {name} -c: only the script's own shell has it; write srun {name} -c …")
    elif any(shell.has_step(word, quoted=each_line) for word in words):
        way_out = "leave exec out" if name == "exec" else f"write srun {name} …"
        way_out = "write an array (--array), one task for each line" if each_line else way_out
        yield Lost(line, f"{name} srun: no other program finds srun in a pod; {way_out}")


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
    if program[:1] == ["hostname"]:
        refusals = [(shown, why.partition(";")[0] + f"; {ADDRESS}") for shown, why in refusals]
    yield from (Lost(line, f"srun {shown}: {why}") for shown, why in refusals)
    noted = [option for option, _ in said if _known(option).kind is StepKind.NOTED]
    for why, options in groupby(sorted(noted, key=_why), key=_why):
        names = ", ".join(dict.fromkeys(options))
        yield Lost(line, f"srun {names}: {why}", refused=False)
    if not refusals and command.captured and tasks.in_all > 1:
        way_out = ADDRESS if program[:1] == ["hostname"] else "run it without srun, which each pod then does"
        yield Lost(line, f"$(srun …): each pod would have the output of its own task alone, or none; {way_out}")
    elif not refusals:
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


_OPTIONS_OF_A_STEP = re.compile(r"\$\{?\w*srun\w*\}?", re.IGNORECASE)
"""A variable that has options of a step, as its name says; those are for the function in the pod to read."""


def split_step(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Options of a step as they are written, with their values, and the words of its program, as in a pod."""
    left, found = list(words), list[tuple[str, str]]()
    while left and (left[0].startswith("-") or _OPTIONS_OF_A_STEP.fullmatch(left[0])) and len(left[0]) > 1:
        word = left.pop(0)
        if word == "--":
            break
        if word.startswith("$"):
            continue
        name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        if not equals and not _known(name).flag and left:
            value = left.pop(0)
        found.append((name, value))
    return found, left
