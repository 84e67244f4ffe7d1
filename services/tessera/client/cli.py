"""The `tessera` command: its groups put together."""

import logging
import sys

import structlog
import typer

from tessera.client.commands import (
    cluster,
    config,
    dlq,
    doctor,
    drains,
    events,
    explain,
    jobs,
    lab,
    ledger,
    orders,
    platform,
    preempt,
    queues,
    slots,
    slurm,
    templates,
    tokens,
    top,
    views,
)

app = typer.Typer(
    help="An event-driven scheduler for GPU clusters.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict, 5 unavailable, 6 refused, 7 timed out, "
    "8 cancelled.",
)
inspecting = typer.Typer(help="Look at the ledger itself.", no_args_is_help=True)

app.command()(platform.run)
app.command()(platform.init)
app.command()(platform.up)
app.command()(platform.demo)
app.command()(config.apply)
app.command()(jobs.submit)
app.command()(views.ls)
app.command()(views.get)
app.command()(explain.explain)
app.command()(jobs.cancel)
app.command()(jobs.checkpoint)
app.command()(templates.templates)
app.command()(orders.hold)
app.command()(orders.release)
app.command()(orders.prio)
app.command()(preempt.preempt)
app.command()(drains.drain)
app.command()(drains.undrain)
app.command()(queues.quota)
app.command()(slots.slots)
app.command()(top.top)
app.command()(slurm.sbatch)
app.command()(slurm.squeue)
app.command()(slurm.scancel)
app.command()(slurm.sinfo)
app.command()(events.events)
app.command()(views.nodes)
app.command()(ledger.replay)
app.command()(doctor.doctor)
inspecting.command("inspect")(ledger.inspect)
inspecting.command("head")(ledger.head)
inspecting.callback()(lambda: None)
app.add_typer(inspecting, name="ledger")
app.add_typer(lab.lab, name="lab")
app.add_typer(config.config, name="config")
app.add_typer(queues.queue, name="queue")
app.add_typer(dlq.dlq, name="dlq")
app.add_typer(tokens.tokens, name="token")
app.add_typer(cluster.cluster, name="cluster")


def main() -> None:
    """Run the command; logs of libraries go to stderr, errors only, since stdout is for programs."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    app()
