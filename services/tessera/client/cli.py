"""The `tessera` command: its groups put together, each imported when it is called."""

import atexit
import gc
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tessera.client.light_imports import put_off_imports, put_off_plugins

GARBAGE_OBJECTS = 500_000
"""New objects between two searches for garbage cycles: rows of a list are many, are kept, and form none."""

SECTIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Jobs": {
        "submit": ("jobs.submit.submit", "Submit a job: a file, a command or a template"),
        "quote": ("jobs.quotes.quote", "Say when a job would start, and what would start it earlier"),
        "quotes": ("jobs.quotes.quotes", "List when waiting jobs start; say how often that held"),
        "rerun": ("jobs.rerun.rerun", "Submit a job's spec again as a new job"),
        "ls": ("shard.views.ls", "List jobs"),
        "get": ("shard.views.get", "Show one job"),
        "explain": ("jobs.explain.explain", "Say why a job waits, and what would let it start"),
        "logs": ("jobs.logs.logs", "Show what a pod of a job writes"),
        "events": ("jobs.events.events", "Show events, stored or as they come"),
        "cancel": ("jobs.submit.cancel", "Cancel a job"),
        "hold": ("jobs.orders.hold", "Keep a job from starting"),
        "release": ("jobs.orders.release", "Let a held job start again"),
        "requeue": ("jobs.orders.requeue", "Stop a job's run, and put the job back in line"),
        "scale": ("jobs.orders.scale", "Give a service another number of replicas"),
        "roles": ("jobs.update.roles", "Move pods of a running job between its elastic roles"),
        "resize": ("jobs.update.resize", "Give the pods of a running job other CPU and memory in place"),
        "prio": ("jobs.orders.prio", "Give a job another priority class"),
        "update": ("jobs.update.update", "Change a job's time limit, begin, name, or what it waits for"),
        "checkpoint": ("jobs.submit.checkpoint", "Report that a job has saved its work"),
        "move": ("jobs.submit.move", "Answer for a job that is asked to move"),
        "templates": ("jobs.templates.templates", "List what can be submitted by name"),
    },
    "Sessions": {
        "run": ("sessions.run.run", "Run a command on your terminal in a pod (-it IMAGE); or a service"),
        "notebook": ("sessions.notebook.notebook", "Submit a Jupyter server and forward a local port to it"),
        "workspace": ("sessions.workspace.workspace", "Submit a program with a port and forward a local port to it"),
        "pause": ("sessions.pausing.pause", "Stop a job's run and hold the job; its quota is free"),
        "resume": ("sessions.pausing.resume", "Let a paused job wait in line again"),
    },
    "Jobs, in Slurm's words": {
        "sbatch": ("slurm_words.sbatch.sbatch", "Submit a batch script"),
        "srun": ("slurm_words.sbatch.srun", "Run a command and show what it writes"),
        "salloc": ("slurm_words.salloc.salloc", "Open a shell in an allocation"),
        "sacct": ("slurm_words.accounting.sacct", "List jobs with state, exit code and GPU-hours"),
        "scontrol": (
            "slurm_words.accounting.scontrol",
            "Show, hold, release, requeue and update; jobs, nodes and partitions in full",
        ),
        "sprio": ("slurm_words.shares.sprio", "List what decides between waiting jobs"),
        "sshare": ("slurm_words.shares.sshare", "List shares of queues, tenants and users"),
        "sreport": ("slurm_words.reports.sreport", "Report who had how many GPUs for how long"),
        "squeue": ("slurm_words.squeue.squeue", "List jobs that wait or run"),
        "scancel": ("slurm_words.squeue.scancel", "Cancel jobs"),
        "sinfo": ("slurm_words.squeue.sinfo", "List the nodes of each queue"),
        "sacctmgr": ("slurm_words.accounts.sacctmgr", "List as which accounts one may submit"),
        "slurm-shims": ("slurm_words.shims.slurm_shims", "Make a directory for PATH with sbatch, squeue and so on"),
    },
    "The shard": {
        "status": ("shard.status.status", "Say who leads, what waits for an answer and what is wrong"),
        "top": ("shard.status.top", "Watch GPUs in use, and why jobs wait"),
        "queue": ("shard.queues.queue", "Show, stop and open queues"),
        "quota": ("shard.queues.quota", "List quotas and their use"),
        "share": ("shard.shares.share", "Say who has used how much, and whose turn it is"),
        "nodes": ("shard.views.nodes", "List nodes with what is free on them"),
        "services": ("shard.services.services", "List services with their replicas; give them another program"),
        "datasets": ("shard.datasets.datasets", "List data sets with the nodes that have them; read one"),
        "slots": ("shard.slots.slots", "Show how many pods of each size could start now"),
        "budget": ("shard.budgets.budget", "Show monthly budgets; grant more"),
        "report": ("shard.accounts.report", "Sum up who had how many GPUs for how long"),
        "showback": ("shard.showback.showback", "Write a month as one file of HTML"),
        "idle": ("shard.accounts.idle", "Sum up why GPUs were not used"),
        "preempt": ("jobs.preempt.preempt", "Show the plan that would make room for a job"),
        "health": ("shard.health.health", "List nodes that are not well, and why; say how one is"),
        "reservation": ("nodes.reservations.reservation", "Show, make and end reservations of nodes"),
        "drain": ("nodes.drains.drain", "Let nothing new start on a node"),
        "undrain": ("nodes.drains.undrain", "Let jobs start on a drained node again"),
    },
    "Access": {
        "login": ("logins.login", "Log in to a gateway's HTTP API"),
        "context": ("logins.context", "Choose among the logins"),
        "token": ("tokens.tokens", "Make, list and revoke tokens of the HTTP API"),
    },
    "Operation": {
        "config": ("shard.config.config", "Write a first configuration; show the one in force"),
        "apply": ("shard.config.apply", "Apply a configuration"),
        "doctor": ("shard.doctor.doctor", "Look for what keeps work from starting"),
        "dlq": ("ledger_care.dlq.dlq", "Read input that could never be handled"),
        "replay": ("ledger_care.ledger.replay", "Verify every record and decision of the ledger"),
        "ledger": ("ledger_care.ledger.inspecting", "Look at the ledger itself"),
        "init": ("platform.init", "Make identities, streams and consumers"),
        "cluster": ("shard.cluster.cluster", "Help an installation on Kubernetes"),
    },
    "On this machine": {
        "up": ("platform.up", "Run a whole shard with a simulated cluster"),
        "demo": ("platform.demo", "Show it all in a minute"),
        "lab": ("lab.lab", "Replay real traces through the engine"),
    },
}
"""Commands and groups of commands by section: where in `tessera.client.commands` each is, and its line in `--help`."""
COMMANDS: Mapping[str, str] = {name: where for section in SECTIONS.values() for name, (where, _) in section.items()}
SLURMS_OWN: dict[str, Any] = {
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": ["--help"],
}
"""For commands that read Slurm's options themselves, and hand on what stands behind the program to run."""
SLURMS_LISTS = frozenset(f"slurm_words.{name}" for name in ("squeue", "accounting", "accounts", "reports", "shares"))
"""Modules whose commands take beginnings of their options' names."""
DISTRIBUTION = "tessera-scheduler"
"""Name on package indexes, where `tessera` is another project."""
UNAVAILABLE = 5
PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}
"""Help without rich, whose import takes longer than everything else that a `--help` does."""


class ImportedWhenCalled(Mapping[str, Any]):
    """The commands of COMMANDS by name; looking one up imports its module and none of the others."""

    def __getitem__(self, name: str) -> Any:
        put_off_imports()
        module, attribute = COMMANDS[name].rsplit(".", 1)
        found = getattr(import_module(f"tessera.client.commands.{module}"), attribute)
        alone = typer.Typer(**PLAIN)
        if isinstance(found, typer.Typer):
            alone.add_typer(found, name=name)
        else:
            alone.command(name, **_way_to_read(module))(found)
        return typer.main.get_group(alone).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _way_to_read(module: str) -> dict[str, Any]:
    """How the commands of a module read their options, where that is not the usual way."""
    if module in ("slurm_words.sbatch", "slurm_words.salloc"):
        return {"context_settings": SLURMS_OWN}
    if module in SLURMS_LISTS:
        from tessera.client.slurm.abbreviated import AbbreviatingCommand  # no other command needs it

        return {"cls": AbbreviatingCommand}
    return {}


class LazyGroup(TyperGroup):
    """A group that lists its commands without importing any of them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": {}})
        self.commands: Any = ImportedWhenCalled()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the sections of `--help`."""
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, line) for name, (_, line) in commands.items()])


app = typer.Typer(
    cls=LazyGroup,
    help="An event-driven scheduler for GPU clusters.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict, 5 unavailable, 6 refused, "
    "7 ended by its time limit, 8 cancelled, 9 valid but not recomputed (replay), 10 gave up waiting, 130 interrupted.",
    **PLAIN,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # a third of the time of `--help`

        print(f"tessera {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def _read_options(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave")
    ] = False,
) -> None: ...


def main() -> None:
    """Run the command that the words of this process name; completion looks for it by its name."""
    gc.set_threshold(GARBAGE_OBJECTS)
    atexit.register(gc.freeze)  # all that is left goes with the process: no search in it for cycles, a fifth of `ls`
    put_off_plugins()  # before typer reads its first option with pydantic
    try:
        app(prog_name="tessera")
    except ModuleNotFoundError as error:
        if (error.name or "tessera").startswith("tessera"):
            raise
        extras = f"'{DISTRIBUTION}[server]', or '{DISTRIBUTION}[local]' for a platform on this machine"
        print(f"error: {error.name}: is not installed; pip install {extras}", file=sys.stderr)
        sys.exit(UNAVAILABLE)
