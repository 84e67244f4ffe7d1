"""The `tessera` command: its groups put together, each imported when it is called."""

import logging
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from tessera.client.light_imports import put_off_imports

COMMANDS: Mapping[str, str] = {
    "run": "platform.run",
    "init": "platform.init",
    "up": "platform.up",
    "demo": "platform.demo",
    "apply": "config.apply",
    "submit": "jobs.submit",
    "ls": "views.ls",
    "get": "views.get",
    "explain": "explain.explain",
    "cancel": "jobs.cancel",
    "checkpoint": "jobs.checkpoint",
    "templates": "templates.templates",
    "hold": "orders.hold",
    "release": "orders.release",
    "prio": "orders.prio",
    "preempt": "preempt.preempt",
    "drain": "drains.drain",
    "undrain": "drains.undrain",
    "quota": "queues.quota",
    "slots": "slots.slots",
    "top": "top.top",
    "sbatch": "slurm.sbatch",
    "squeue": "slurm.squeue",
    "scancel": "slurm.scancel",
    "sinfo": "slurm.sinfo",
    "events": "events.events",
    "nodes": "views.nodes",
    "replay": "ledger.replay",
    "doctor": "doctor.doctor",
    "ledger": "ledger.inspecting",
    "lab": "lab.lab",
    "config": "config.config",
    "queue": "queues.queue",
    "dlq": "dlq.dlq",
    "token": "tokens.tokens",
    "cluster": "cluster.cluster",
}
"""Each command, or group of commands, and where in `tessera.client.commands` it is; in the order of `--help`."""


class ImportedWhenCalled(Mapping[str, Any]):
    """The commands of COMMANDS by name; looking one up imports its module and none of the others."""

    def __getitem__(self, name: str) -> Any:
        module, attribute = COMMANDS[name].split(".")
        found = getattr(import_module(f"tessera.client.commands.{module}"), attribute)
        alone = typer.Typer()
        if isinstance(found, typer.Typer):
            alone.add_typer(found, name=name)
        else:
            alone.command(name)(found)
        return typer.main.get_group(alone).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class LazyGroup(TyperGroup):
    """A group that knows its commands' names before it imports any of them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": {}})
        self.commands: Any = ImportedWhenCalled()

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of the table."""
        return list(self.commands)


app = typer.Typer(
    cls=LazyGroup,
    help="An event-driven scheduler for GPU clusters.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict, 5 unavailable, 6 refused, 7 timed out, "
    "8 cancelled.",
)
app.callback()(lambda: None)


def main() -> None:
    """Run the command; logs of libraries go to stderr, errors only, since stdout is for programs."""
    put_off_imports()
    import structlog

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    app()
