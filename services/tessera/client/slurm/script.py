"""A batch script with its options: those of its `#SBATCH` lines, and those of the command line, which go before."""

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.client.outcomes import Exit, Failure
from tessera.client.slurm.options import KNOWN, Asked, split_line
from tessera_schemas.reasons import Code, Reason

WAYS_TO_COUNT = ("gres", "gpus", "gpus-per-node", "gpus-per-task")
WAYS_TO_REMEMBER = ("mem", "mem-per-cpu", "mem-per-gpu")
"""Options that say the same in other ways: one of the command line takes the place of any of the script."""


@dataclass(frozen=True, slots=True)
class Script:
    """
    A batch script: the values of its options by their long names, its text, and its own arguments.

    `against` are the options that nothing honours: told together with values that cannot be meant, by `job_of`.
    """

    options: dict[str, str]
    text: str
    where: str
    arguments: tuple[str, ...] = ()
    against: tuple[Reason, ...] = ()


def read_script(
    text: str, where: str, ignored: Sequence[str] = (), said: Sequence[Asked] = (), arguments: Sequence[str] = ()
) -> Script:
    """
    The script with its options, those `said` on the command line before those of lines ahead of the first command.

    Raises Failure for an option without its value.
    """
    options: dict[str, str] = {}
    against: list[Reason] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            _take(options, against, split_line(line.removeprefix("#SBATCH"), f"{where}:{number}"), number, ignored)
    here: dict[str, str] = {}
    _take(here, against, said, 0, ignored)
    empty = next((name for name, value in (options | here).items() if not value), None)
    if empty is not None:
        raise Failure(Exit.USAGE, f"{where}: --{empty} has no value; write --{empty}=VALUE")
    for ways in (WAYS_TO_COUNT, WAYS_TO_REMEMBER):
        if any(name in here for name in ways):
            options = {name: value for name, value in options.items() if name not in ways}
    return Script(options | here, text, where, tuple(arguments), tuple(against))


def _take(
    options: dict[str, str], against: list[Reason], asked: Sequence[Asked], line: int, ignored: Sequence[str]
) -> None:
    for name, value in asked:
        option = KNOWN.get(name)
        if name in ignored:
            continue
        if option is not None and option.becomes:
            options[name] = value
            continue
        code = Code.UNKNOWN_FIELD if option is None else Code.NOT_SUPPORTED_YET
        way_out = "no such option is known here: delete it" if option is None else option.way_out
        field = f"line {line}: --{name}" if line else f"--{name}"
        against.append(Reason(code=code, field=field[:300], detail=f"{way_out}; or say --ignore {name}"[:1024]))
