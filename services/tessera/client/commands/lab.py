"""`lab`: replays of real traces through the engine, on virtual time."""

import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tessera.client.commands.context import command
from tessera.client.outcomes import Exit, Failure, check_checkout
from tessera.client.views.rendering import notify

lab = typer.Typer(help="Replay real traces through the engine.", no_args_is_help=True)


@lab.callback()
@command
def _check_checkout() -> None:
    check_checkout("tessera_lab", "lab")


class Form(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"


Services = Annotated[
    bool, typer.Option("--services", help="Through all real services in one process, instead of the engine alone")
]


@dataclass(frozen=True, slots=True)
class PodReplay:
    """Options of every replay of pods on nodes."""

    policy: Annotated[str, typer.Option(help="Policies, with commas between them")] = "bestfit,fgd,tessera"
    nodes: Annotated[Path | None, typer.Option(help="CSV of nodes of your own: cpu_milli,memory_mib,gpu,model")] = None
    pods: Annotated[
        Path | None,
        typer.Option(
            help="CSV of pods of your own: cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec; churn also reads "
            "creation_time,scheduled_time,deletion_time"
        ),
    ] = None
    services: Services = False
    most: Annotated[int | None, typer.Option(min=1, help="With --services: end a run after so many arrivals")] = None


@lab.command()
@command
def pack(
    asked: PodReplay,
    trace: Annotated[list[str], typer.Argument(help="default, gpuspec33, … or a name for --pods")],
    seeds: Annotated[str, typer.Option(help="One run each: 42-51 or 1,2,5")] = "42-51",
    output: Annotated[Form, typer.Option("--output", "-o", help="How to print")] = Form.TABLE,
    report: Annotated[Path | None, typer.Option(help="Write plots and one HTML page into this directory")] = None,
    live: Annotated[
        bool, typer.Option("--live", help="By the committer's own placement, with prices learnt as its services do")
    ] = False,
    learnt_by: Annotated[
        str, typer.Option(help="With --live: how prices are learnt: rehearsed, auction or nobody")
    ] = "rehearsed",
    late: Annotated[int, typer.Option(min=0, help="With --live: so many arrivals pass while prices are learnt")] = 0,
    window: Annotated[
        int | None, typer.Option(min=1, help="Let so many pods wait, and place the one that fits best; for tessera")
    ] = None,
    delay: Annotated[int, typer.Option(min=0, help="With --window: nobody is passed by more arrivals than this")] = 256,
) -> None:
    """Fill a cluster with each trace by the published protocol, and say how much of it each policy could use."""
    from tessera_lab.pack.campaign import parse_policies, parse_seeds, parse_window, run_all
    from tessera_lab.pack.plots import write_report
    from tessera_lab.pack.summary import as_csv, figures, lines
    from tessera_lab.traces import MissingTrace
    from tessera_lab.traces.alibaba import read_published, read_trace

    here, policies, numbers = Path(), parse_policies(asked.policy), parse_seeds(seeds)
    if asked.services or live:
        traces = [read_trace(name, os.environ, here, asked.nodes, asked.pods) for name in trace]
        plan = [(one, policy, seed) for one in traces for policy in policies for seed in numbers]
        runs = _pack_through_services(plan, asked.most) if asked.services else _pack_live(plan, learnt_by, late)
        _print_runs(runs, output)
        return
    reorder = parse_window(window, delay, policies)
    try:
        published = read_published(os.environ, here)
    except MissingTrace as missing:
        notify(f"without published figures: {missing}")
        published = {}
    traces = [read_trace(name, os.environ, here, asked.nodes, asked.pods) for name in trace]
    by_trace, rows = {}, []
    with _progress() as bar:
        step = bar.add_task("", total=len(traces) * len(policies) * len(numbers))
        for one in traces:

            def report_progress(policy: str, seed: int, name: str = one.name) -> None:
                bar.update(step, advance=1 if bar.tasks[0].description else 0)
                bar.update(step, description=f"{name}, {policy}, seed {seed}")

            by_trace[one.name] = run_all(one, policies, numbers, report is not None, report_progress, reorder)
            for found in by_trace[one.name].values():
                rows += figures(one.name, found, {} if asked.pods else published)
        bar.update(step, advance=1)
    written = write_report(report, by_trace, rows) if report else []
    if output is Form.JSON:
        print(json.dumps({"figures": [asdict(row) for row in rows]}, indent=2))
    else:
        print("\n".join(lines(rows)) if output is Form.TABLE else as_csv(rows).rstrip("\n"))
    if written:
        notify(f"the report is {written[0]}")


@lab.command()
@command
def instances(
    trace: Annotated[list[str], typer.Argument(help="default, gpushare40, …")],
    policy: Annotated[
        str, typer.Option(help="Of first-fit, lowest-slot, bestfit and tessera, with commas between them")
    ] = "first-fit,lowest-slot,bestfit,tessera",
    seeds: Annotated[str, typer.Option(help="One run each: 42-51 or 1,2,5")] = "42-44",
    shares_only: Annotated[bool, typer.Option("--shares-only", help="Leave out pods of whole GPUs")] = False,
    every: Annotated[int, typer.Option(min=1, help="Take every so many-th of the trace's nodes")] = 1,
    output: Annotated[Form, typer.Option("--output", "-o", help="How to print")] = Form.TABLE,
) -> None:
    """Fill GPUs that may be cut with each trace, its shares as MIG instances, and say how much each policy used."""
    from tessera_lab.pack.campaign import parse_seeds
    from tessera_lab.pack.instances import fill, lines_of, parse_policies
    from tessera_lab.traces.alibaba import read_trace

    policies, numbers = parse_policies(policy), parse_seeds(seeds)
    traces = [read_trace(name, os.environ, Path()) for name in trace]
    runs = [fill(one, name, seed, shares_only, every) for one in traces for name in policies for seed in numbers]
    _print_runs((runs, lines_of), output)


@lab.command()
@command
def near(
    trace: Annotated[list[str], typer.Argument(help="default, gpuspec33, …")],
    seeds: Annotated[str, typer.Option(help="One run each, with each value of gang_topology")] = "42-44",
    learnt_by: Annotated[str, typer.Option(help="How prices are learnt: rehearsed, auction or nobody")] = "rehearsed",
    output: Annotated[Form, typer.Option("--output", "-o", help="How to print")] = Form.TABLE,
) -> None:
    """Fill racks with each trace, its pods as gangs, and say how near each other these are and what that costs."""
    from tessera_lab.pack.campaign import parse_seeds
    from tessera_lab.pack.live import parse_how
    from tessera_lab.pack.near import GANG_TOPOLOGIES, fill_near, lines_of
    from tessera_lab.traces.alibaba import read_trace

    how, numbers = parse_how(learnt_by), parse_seeds(seeds)
    traces = [read_trace(name, os.environ, Path()) for name in trace]
    runs = [fill_near(one, value, seed, how) for one in traces for seed in numbers for value in GANG_TOPOLOGIES]
    _print_runs((runs, lines_of), output)


def _pack_through_services(plan: Sequence[tuple[Any, str, int]], most: int | None) -> tuple[list[Any], Any]:
    from tessera_lab.pack.services import lines_of, through_services

    runs = []
    _quiet(True)
    with _progress() as bar:
        for one, name, seed in plan:
            runs.append(
                through_services(one, name, seed, most, _show_progress(bar, f"{one.name}, {name}, seed {seed}"))
            )
    return runs, lines_of


def _pack_live(plan: Sequence[tuple[Any, str, int]], learnt_by: str, late: int) -> tuple[list[Any], Any]:
    from tessera_lab.pack.live import lines_of, live, parse_how

    how, runs = parse_how(learnt_by), []
    with _progress() as bar:
        step = bar.add_task("", total=len(plan))
        for one, name, seed in plan:
            bar.update(step, description=f"{one.name}, {name}, seed {seed}")
            runs.append(live(one, name, seed, how, late))
            bar.update(step, advance=1)
    return runs, lines_of


def _print_runs(found: tuple[list[Any], Any], output: Form) -> None:
    runs, lines_of = found
    if output is Form.JSON:
        print(json.dumps({"runs": [asdict(run) for run in runs]}, indent=2))
    else:
        print("\n".join(lines_of(runs, ",") if output is Form.CSV else lines_of(runs)))


@lab.command()
@command
def queue(
    trace: Annotated[str, typer.Argument(help="philly, or a CSV file: submit_s,duration_s,num_gpus,vc")] = "philly",
    gpus: Annotated[int, typer.Option(help="GPUs of the pool")] = 576,
    node_gpus: Annotated[int, typer.Option(help="GPUs of a node")] = 8,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Of fifo, skip, sjf-oracle, expected and reserve, with commas between them, skip-moving and so on "
            "with relocations, skip-quota and so on with the quota that `tessera config init` writes; skip-users and "
            "so on with each virtual cluster a user, skip-share and so on with a half-life of a week besides; through "
            "the services fifo, skip, reserve and expected, with -users or -share",
            show_default="fifo,skip,sjf-oracle,expected",
        ),
    ] = None,
    first_day: Annotated[int | None, typer.Option(help="First day to replay; philly: 27, the 1st of October")] = None,
    last_day: Annotated[int | None, typer.Option(help="The day before which to stop")] = None,
    history: Annotated[bool, typer.Option(help="Learn from what had ended before the first day")] = True,
    plot: Annotated[Path | None, typer.Option(help="Write a plot to this PNG file")] = None,
    output: Annotated[Form, typer.Option("--output", "-o", help="table or json")] = Form.TABLE,
    services: Services = False,
    most: Annotated[int | None, typer.Option(min=1, help="The first so many jobs alone")] = None,
    month: Annotated[int | None, typer.Option(help="Seed of a fuller month made of philly's September")] = None,
) -> None:
    """Replay jobs on one pool under several policies, and say how long they wait."""
    from tessera_lab.queue.run import asked, replay_trace

    _quiet(services)
    form = output.value
    wanted = asked(trace, gpus, node_gpus, policy, first_day, last_day, history, plot, form, services, most, month)
    replay_trace(trace, wanted, os.environ, Path.cwd())


@lab.command()
@command
def quotes(
    trace: Annotated[str, typer.Argument(help="philly, or a CSV file: submit_s,duration_s,num_gpus,vc")] = "philly",
    gpus: Annotated[int, typer.Option(help="GPUs of the pool")] = 576,
    node_gpus: Annotated[int, typer.Option(help="GPUs of a node")] = 8,
    policy: Annotated[str, typer.Option(help="expected or reserve, each also with -users or -share")] = "expected",
    first_day: Annotated[int | None, typer.Option(help="First day to replay; philly: 27, the 1st of October")] = None,
    last_day: Annotated[int | None, typer.Option(help="The day before which to stop")] = None,
    history: Annotated[bool, typer.Option(help="Learn from what had ended before the first day")] = True,
    plot: Annotated[Path | None, typer.Option(help="Write a plot to this PNG file")] = None,
    output: Annotated[Form, typer.Option("--output", "-o", help="table or json")] = Form.TABLE,
    most: Annotated[int | None, typer.Option(min=1, help="The first so many jobs alone")] = None,
    month: Annotated[int | None, typer.Option(help="Seed of a fuller month made of philly's September")] = None,
    every: Annotated[int, typer.Option(min=1, help="Quote one in so many of the jobs that wait, by a hash")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the futures that are drawn")] = 1,
) -> None:
    """Tell the jobs of a trace when they will start, and say how often that held, beside naive predictors."""
    from tessera_lab.queue.quotes import QuotesRequest, quote_trace
    from tessera_lab.queue.run import asked

    form = output.value
    wanted = asked(trace, gpus, node_gpus, policy, first_day, last_day, history, plot, form, False, most, month)
    quote_trace(trace, QuotesRequest(wanted, every, seed), os.environ, Path.cwd())


@lab.command()
@command
def churn(
    asked: PodReplay,
    trace: Annotated[str, typer.Argument(help="default, gpuspec33, … or a name for --pods")] = "default",
    load: Annotated[str, typer.Option(help="Offered loads in per cent of the GPUs")] = "80,90,95,100",
    seeds: Annotated[str, typer.Option(help="One run each: 42-44 or 1,2,5")] = "42-44",
    days: Annotated[int, typer.Option(help="Days that are measured")] = 5,
    warmup_days: Annotated[int, typer.Option(help="Days before them that are not")] = 2,
    output: Annotated[Form, typer.Option("--output", "-o", help="table or json")] = Form.TABLE,
    report: Annotated[Path | None, typer.Option(help="Write plots along time into this directory")] = None,
) -> None:
    """Let a trace's pods come and go at a steady load, and say how much of the cluster each policy keeps in use."""
    from tessera_lab.churn.campaign import parse_loads, parse_span, run_all
    from tessera_lab.churn.figures import as_json, figures, lines
    from tessera_lab.churn.lifetimes import read_timed
    from tessera_lab.churn.plots import write_plots
    from tessera_lab.pack.campaign import parse_policies, parse_seeds

    if output is Form.CSV:
        raise Failure(Exit.USAGE, "--output: csv is not offered here, table and json are")
    policies, loads, numbers = parse_policies(asked.policy), parse_loads(load), parse_seeds(seeds)
    span = parse_span(warmup_days, days)
    if asked.services:
        if report:
            raise Failure(Exit.USAGE, "--services: table and json are offered here, no report")
        plan = [(percent, seed, policy) for percent in loads for seed in numbers for policy in policies]
        _print_runs(_churn_through_services(asked, trace, span, plan), output)
        return
    timed = read_timed(trace, os.environ, Path(), asked.nodes, asked.pods)
    with _progress() as bar:
        step = bar.add_task("", total=2 * len(policies) * len(loads) * len(numbers))

        def report_progress(what: str) -> None:
            bar.update(step, advance=1 if bar.tasks[0].description else 0, description=what)

        campaign = run_all(timed, policies, loads, numbers, span, report_progress)
        bar.update(step, advance=1)
    rows = figures(campaign)
    written = write_plots(report, campaign) if report else []
    print(json.dumps(as_json(campaign, rows), indent=2) if output is Form.JSON else "\n".join(lines(campaign, rows)))
    if written:
        notify(f"the plots are below {report}")


def _churn_through_services(
    asked: PodReplay, trace: str, span: Any, plan: Sequence[tuple[int, int, str]]
) -> tuple[list[Any], Any]:
    from tessera_lab.churn.arrivals import HOUR_MS
    from tessera_lab.churn.lifetimes import read_timed
    from tessera_lab.churn.offered import offer
    from tessera_lab.churn.services import lines_of, through_services, window
    from tessera_lab.traces.as_jobs import config

    for _, _, policy in plan:
        config(policy)  # refuses one that the services do not have, before an hour of replay
    timed, runs = read_timed(trace, os.environ, Path(), asked.nodes, asked.pods), []
    _quiet(True)
    with _progress() as bar:
        for percent, seed, policy in plan:
            offered = offer(timed, percent, seed, span.hours * HOUR_MS)
            report_progress = _show_progress(bar, f"{percent} %, {policy}, seed {seed}")
            counted = window(offered, span, asked.most)
            runs.append(through_services(timed, policy, percent, seed, offered, counted, report_progress))
    return runs, lines_of


def _show_progress(bar: Progress, title: str) -> Callable[[int, int], None]:
    """A new line of the progress display, and the function that moves it: pods done, of how many."""
    step = bar.add_task(title)
    return lambda done, of: bar.update(step, completed=done, total=of)


def _quiet(services: bool) -> None:
    """Services that run in this process say only what is wrong."""
    if services:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))


def _progress() -> Progress:
    """On stderr, and only where somebody watches."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
