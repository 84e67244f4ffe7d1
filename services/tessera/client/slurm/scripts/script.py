"""
A batch script with its options: those of its `#SBATCH` lines, and those of the calling shell's variables and of the
command line, which go before. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tessera.client.outcomes import Exit, Failure
from tessera.client.slurm import values
from tessera.client.slurm.scripts.options import KNOWN, Asked, split_line
from tessera.client.slurm.values import Said
from tessera_schemas.reasons import Code, Reason

_SAID_BY_VARIABLES = (
    *("account", "acctg-freq", "array", "clusters", "constraint", "container", "core-spec", "cpus-per-gpu"),
    *("delay-boot", "distribution", "error", "exclusive", "export", "get-user-env", "gpu-bind", "gpu-freq", "gpus"),
    *("gpus-per-node", "gpus-per-task", "gres", "gres-flags", "hint", "input", "job-name", "mem", "mem-bind"),
    *("mem-per-cpu", "mem-per-gpu", "network", "no-kill", "no-requeue", "open-mode", "output", "overcommit"),
    *("partition", "profile", "qos", "requeue", "reservation", "signal", "spread-job", "switches", "thread-spec"),
    *("threads-per-core", "time", "tres-per-task", "use-min-nodes", "wait", "wait-all-nodes", "wckey"),
)
_OTHERWISE = {"array": "ARRAY_INX", "mem": "MEM_PER_NODE", "switches": "REQ_SWITCH", "time": "TIMELIMIT"}
_PREFIXES = {"sbatch": "SBATCH_", "salloc": "SALLOC_"}

WAYS_TO_COUNT = ("gres", "gpus", "gpus-per-node", "gpus-per-task")
WAYS_TO_REMEMBER = ("mem", "mem-per-cpu", "mem-per-gpu")
WAYS_TO_TRY = ("no-requeue", "requeue")
"""Options that say the same in other ways: one of the command line takes the place of any of the script."""


DOS = "has DOS line breaks (\\r\\n), which no shell takes; write UNIX ones: sed -i 's/\\r$//' FILE"


Mistake = tuple[str, str]
"""An option by its name, "" for several or none, and a sentence about it."""


@dataclass(frozen=True, slots=True)
class Script:
    """
    A batch script: the values of its options by their long names, its text, and its own arguments.

    `against` are the options that nothing honours, `mistakes` sentences about what cannot be meant, with the option
    they are about; both are told together with what `job_of` finds. `ignored` are names of what is passed over;
    `in_each_pod` where the text is ours and not a batch script.
    """

    options: dict[str, str]
    text: str
    where: str
    arguments: tuple[str, ...] = ()
    against: tuple[Reason, ...] = ()
    mistakes: tuple[Mistake, ...] = ()
    ignored: tuple[str, ...] = ()
    in_each_pod: bool = False
    notes: tuple[str, ...] = ()
    """Sentences about options that change nothing, and are passed over."""

    def with_mistakes(self, *sentences: str) -> "Script":
        """The same script with what its command has found against it."""
        return replace(self, mistakes=(*self.mistakes, *(("", sentence) for sentence in sentences)))


@dataclass(frozen=True, slots=True)
class ScriptOptions:
    """The options of a script, each as a value that knows where it stands."""

    script: Script

    def __contains__(self, name: str) -> bool:
        return name in self.script.options

    def value(self, name: str) -> Said:
        """The option's value; raises KeyError for one that is not there."""
        return Said(self.script.where, name, self.script.options[name])

    def count(self, name: str) -> int:
        """The option's number; 1 where it is not there."""
        return values.count_of(self.value(name)) if name in self else 1

    def fail(self, why: str) -> Failure:
        """A mistake of the options together."""
        return Failure(Exit.USAGE, f"{self.script.where}: {why}")

    def one_of(self, names: tuple[str, ...]) -> str:
        """The one that is used of several ways to say the same, "" for none. Raises Failure for two."""
        given = [name for name in names if name in self]
        if len(given) > 1:
            raise self.fail(f"--{' and --'.join(given)}: say one of them")
        return given[0] if given else ""


def read_script(
    text: str,
    where: str,
    ignored: Sequence[str] = (),
    said: Sequence[Asked] = (),
    arguments: Sequence[str] = (),
    *,
    in_each_pod: bool = False,
) -> Script:
    """The script with its options, those `said` on the command line before those of lines above the first command."""
    options: dict[str, str] = {}
    against: list[Reason] = []
    notes: list[str] = []
    mistakes: list[Mistake] = [("", f"{where}: {DOS}")] if "\r\n" in text else []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if line.startswith("#SBATCH"):
            found, wrong = split_line(line.removeprefix("#SBATCH"), f"{where}:{number}")
            notes += _take(options, against, found, f"{where}:{number}", number, ignored)
            mistakes += [("", sentence) for sentence in wrong]
    here: dict[str, str] = {}
    notes += _take(here, against, said, where, 0, ignored)
    for ways in (WAYS_TO_COUNT, WAYS_TO_REMEMBER, WAYS_TO_TRY):
        if any(name in here for name in ways):
            options = {name: value for name, value in options.items() if name not in ways}
    options |= here
    empty = [name for name, value in options.items() if not value]
    mistakes += [(name, f"{where}: --{name} has no value; write --{name}=VALUE") for name in empty]
    whole = {name: value for name, value in options.items() if value}
    return Script(
        whole, text, where, tuple(arguments), tuple(against), tuple(mistakes), tuple(ignored), in_each_pod, tuple(notes)
    )


def _take(
    options: dict[str, str],
    against: list[Reason],
    asked: Sequence[Asked],
    at: str,
    line: int,
    ignored: Sequence[str],
) -> list[str]:
    """Takes in the options of one line; returns notes about those that are passed over."""
    notes: list[str] = []
    for name, value in asked:
        option = KNOWN.get(name)
        if name in ignored:
            continue
        if option is not None and option.advisory:
            notes.append(f"{at}: --{name} is passed over: {option.way_out}")
            continue
        if option is not None and option.becomes:
            for other in WAYS_TO_TRY if name in WAYS_TO_TRY else ():
                options.pop(other, None)  # the last one counts
            options[name] = value
            continue
        code = Code.UNKNOWN_FIELD if option is None else Code.NOT_SUPPORTED_YET
        way_out = _way_out_of_unknown(name) if option is None else option.way_out
        field = f"line {line}: --{name}" if line else f"--{name}"
        against.append(Reason(code=code, field=field[:300], detail=f"{way_out}; or say --ignore {name}"[:1024]))
    return notes


def _way_out_of_unknown(name: str) -> str:
    """Way out for an option that is not known, or that is cut so short that several begin so."""
    meant = [f"--{each}" for each in KNOWN if name and each.startswith(name)]
    return f"write {' or '.join(meant)} in full" if meant else "no such option is known here: delete it"


def preset(command: str, environment: Mapping[str, str]) -> list[Asked]:
    """
    What the environment asks of the command, before what its line says: `SBATCH_PARTITION` is `--partition`.

    Empty variables say nothing. Those of `srun` are not read: they have the names that a job's own variables have.
    """
    found = list[Asked]()
    for name in _SAID_BY_VARIABLES if command in _PREFIXES else ():
        variable = _PREFIXES[command] + _OTHERWISE.get(name, name.upper().replace("-", "_"))
        if value := environment.get(variable, ""):
            found.append((name, "yes" if KNOWN[name].flag and value in ("1", "exclusive") else value))
    return found
