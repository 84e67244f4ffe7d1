"""`slurm-shims`: Slurm's commands as programs, for scripts and libraries that call `sbatch` and `squeue`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from tessera.client.commands.context import AccessOptions, command
from tessera.client.outcomes import Exit, Failure

COMMANDS = (
    "sbatch",
    "srun",
    "salloc",
    "squeue",
    "scancel",
    "sinfo",
    "sacct",
    "scontrol",
    "sprio",
    "sshare",
    "sreport",
    "sacctmgr",
)
SAID_BY = "# By `tessera slurm-shims`; docs/slurm.md says what it honours."
SENDING = ("sbatch", "srun", "salloc", "scancel", "sacctmgr")
"""Those that do something as a tenant: `--as` is theirs. The others read, as who is here may."""
ALONE = {"sbatch": "--ignore notes "}
"""Words before those of the caller: who reads both streams of `sbatch` as one finds the number alone."""


@command
def slurm_shims(
    at: AccessOptions,
    directory: Annotated[Path, typer.Argument(help="Directory to write them into; then put it into PATH")],
) -> None:
    """
    Write sbatch, squeue and Slurm's other commands into a directory, each a call of `tessera`.

    --home, --shard and --context are written into them, and --as into those that submit and cancel; without, they use
    the caller's environment.
    """
    directory.mkdir(parents=True, exist_ok=True)
    theirs = [name for name in COMMANDS if (path := directory / name).exists() and not _is_ours(path)]
    if theirs:
        raise Failure(Exit.CONFLICT, f"{directory}: {', '.join(theirs)} is there already; choose another directory")
    for name in COMMANDS:
        path = directory / name
        # -P: a caller's directory may hold a `queue.py` or `json.py` of its own.
        words = [sys.executable, "-P", "-m", "tessera", name, *_where(at, name)]
        path.write_text(f'#!/bin/sh\n{SAID_BY}\nexec {shlex.join(words)} {ALONE.get(name, "")}"$@"\n')
        path.chmod(0o755)
    print(f'export PATH="{directory.resolve()}:$PATH"')


def _is_ours(path: Path) -> bool:
    try:
        return SAID_BY in path.read_text(errors="replace")
    except IsADirectoryError:
        return False


def _where(at: AccessOptions, command_name: str) -> list[str]:
    """The options that say which shard is asked and as whom, as far as they are given."""
    home = None if at.home is None else str(at.home.resolve())
    given = {
        "--home": home,
        "--shard": at.shard,
        "--context": at.context,
        "--as": at.identity if command_name in SENDING else None,
    }
    return [word for name, value in given.items() if value is not None for word in (name, value)]
