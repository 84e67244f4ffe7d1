"""`sreport`: the account of who had the GPUs, which `tessera report` sums up, in Slurm's words."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, NamedTuple

import typer

from tessera.client.commands.context import AccessOptions, command
from tessera.client.commands.slurm_words.squeue import print_lines
from tessera.client.connect.connecting import api_of
from tessera.client.ledger.accounts.accounting import AccountReport, AccountRow, served_report
from tessera.client.outcomes import Exit, Failure
from tessera.client.slurm.listing import fields
from tessera.client.slurm.values import Said, since_ms
from tessera.client.views.rendering import Column, Output, notify, show, show_bare
from tessera.engine.accounts.naming import GPU_SECOND
from tessera.engine.accounts.owners import HELD, KEPT, RUNNING, GpuCause
from tessera.kernel.clock import SystemClock

HOUR_MS = 3_600_000
TOP = "10"
GPU = "gres/gpu"
HAD = (*RUNNING, *HELD)
ALLOCATED = (*HAD, GpuCause.OTHERS)


class UsageRow(NamedTuple):
    """What an account, a user of it or, without both, the cluster had."""

    cluster: str
    had: AccountRow
    account: str = ""
    login: str = ""

    @property
    def used(self) -> int:
        """Amount that its runs held, from allocation to release."""
        return self.had.of(*HAD)

    @property
    def idle(self) -> int:
        """Amount that nobody had, on nodes that are not out."""
        return self.had.sum - self.had.of(*ALLOCATED, *KEPT, GpuCause.OUT)


TEXTS: Mapping[str, tuple[str, Callable[[UsageRow], str]]] = {
    "Cluster": ("Cluster", lambda row: row.cluster),
    "Accounts": ("Account", lambda row: row.account),
    "Login": ("Login", lambda row: row.login),
    "ProperName": ("Proper Name", lambda row: ""),
    "TresName": ("TRES Name", lambda row: GPU),
}
AMOUNTS: Mapping[str, tuple[str, Callable[[UsageRow], int]]] = {
    "Used": ("Used", lambda row: row.used),
    "Allocated": ("Allocated", lambda row: row.had.of(*ALLOCATED)),
    "Down": ("Down", lambda row: row.had.of(GpuCause.OUT)),
    "Idle": ("Idle", lambda row: row.idle),
    "Planned": ("Planned", lambda row: row.had.of(*KEPT)),
    "Reserved": ("Planned", lambda row: row.had.of(*KEPT)),
    "PlannedDown": ("PLND Down", lambda row: 0),
    "Reported": ("Reported", lambda row: row.had.sum),
}
"""Fields with their titles and values, in thousandths of a GPU times milliseconds."""
OF_PEOPLE = ("Cluster", "Accounts", "Login", "ProperName", "TresName", "Used")
OF_CLUSTER = ("Cluster", "TresName", *(name for name in AMOUNTS if name != "Used"))


class SlurmReport(NamedTuple):
    """Heading of a report, its usual fields, all that it has, and its words besides those of every report."""

    heading: str
    usual: str
    known: Sequence[str]
    words: Sequence[str]


COMMON = ("Start", "End", "Format", "Clusters", "All_Clusters")
CHOICE = ("Users", "Accounts", "Acct")
BARE = ("Tree", "All_Clusters")
"""Words without a value, which are taken: rows are in the order of the tree, and there is one cluster."""
BY_USER, BY_USE = "Cluster,Accounts,Login,Proper,Used", "Cluster,Login,Proper,Accounts,Used"
OF_ALL = "Cluster,Allocated,Down,PlannedDown,Idle,Planned,Reported"
TREE = SlurmReport("Cluster/Account/User Utilization", BY_USER, OF_PEOPLE, (*CHOICE, "Tree"))
USERS = SlurmReport("Cluster/User/Account Utilization", BY_USE, OF_PEOPLE, CHOICE)
TOP_USERS = SlurmReport("Top {} Users", BY_USE, OF_PEOPLE, (*CHOICE, "TopCount"))
WHOLE = SlurmReport("Cluster Utilization", OF_ALL, OF_CLUSTER, ())
BY_PROJECT = "a WCKey is a project here: say `tessera report --by project`"
REPORTS: Mapping[str, Mapping[str, SlurmReport | str]] = {
    "cluster": {
        "AccountUtilizationByUser": TREE,
        "AccountUtilizationByQOS": "the account tells no classes apart; AccountUtilizationByUser is there",
        "Utilization": WHOLE,
        "UserUtilizationByAccount": USERS,
        "UserUtilizationByWCKey": BY_PROJECT,
        "WCKeyUtilizationByUser": BY_PROJECT,
    },
    "user": {"TopUsage": TOP_USERS},
    "job": dict.fromkeys(
        ("SizesByAccount", "SizesByAccountAndWCKey", "SizesByWCKey"),
        "the account has no sizes of jobs: `tessera report --by job`, or `tessera sacct -o JobID,AllocTRES,GPUHours`",
    ),
    "reservation": {"Utilization": "there are no reservations by name: `tessera idle` says what was kept for jobs"},
}
"""Reports by their kind; instead of one that is not there, why. The first that begins as it is said is meant."""
UNITS: Mapping[str, int] = {"Seconds": GPU_SECOND, "Minutes": 60 * GPU_SECOND, "Hours": 3600 * GPU_SECOND, "Percent": 0}


@command
async def sreport(
    at: AccessOptions,
    said: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KIND REPORT [NAME=VALUE...]",
            help="cluster AccountUtilizationByUser, UserUtilizationByAccount or Utilization; user TopUsage; then "
            "start=, end=, users=, accounts=, topcount=, format=, tree",
            show_default=False,
        ),
    ] = None,
    time: Annotated[str, typer.Option("--time", "-t", help="Seconds, Minutes, Hours or Percent")] = "Minutes",
    tres: Annotated[str | None, typer.Option("--tres", "-T", help="gres/gpu, with a column that says so")] = None,
    noheader: Annotated[bool, typer.Option("--noheader", "-n", help="Without heading and titles")] = False,
    parsable: Annotated[bool, typer.Option("--parsable2", "-P", help="Fields with | between them")] = False,
    ending: Annotated[bool, typer.Option("--parsable", "-p", help="The same, with a | at the end")] = False,
    everywhere: Annotated[bool, typer.Option("--all_clusters", "-a", help="Taken: there is one")] = False,
) -> None:
    """
    Report who had how many GPUs for how long, yesterday unless told: an account is a tenant, the cluster the shard.

    Used is the GPU time that runs held, from allocation to release. The gateway has full hours of 35 days, then days.
    """
    report, rest = _report_of(said or ())
    words = _words(report, rest)
    unit = _first(UNITS, time)
    if not unit:
        raise Failure(Exit.USAGE, f"sreport -t {time}: write {', '.join(UNITS)}; a percentage has a run of its own")
    if tres is not None and tres.lower() != GPU:
        cpu = "CPU and memory: `tessera report --resource cpu`"
        raise Failure(Exit.USAGE, f"sreport --tres={tres}: it reports {GPU} alone; {cpu}")
    where = at.find()
    if words.get("Clusters", where.shard) != where.shard:
        raise Failure(Exit.USAGE, f"sreport clusters={words['Clusters']}: it is {where.shard} here; say --shard")
    top, usual = _count(words), report.usual
    if tres is not None:
        of, named = ("Cluster", "Cluster,TresName") if report is WHOLE else ("Used", "TresName,Used")
        usual = usual.replace(of, named)
    shown = [_field(report, name) for name in words.get("Format", usual).split(",")]
    since, until, now_ms = _span(words)
    found = await served_report(api_of(where, at.identity), since, until, "cause" if report is WHOLE else "user")
    columns = [_column(*each, unit, found.capacity) for each in shown]
    rows = _rows(report, found, words, where.shard)
    heading = report.heading.format(top)
    if noheader:
        if abs(found.since_ts - since) >= HOUR_MS or abs(found.until_ts - min(until, now_ms)) >= HOUR_MS:
            notify(f"sreport: the account has {_written(found)} of that time")
    else:
        measured = unit if unit == "Percent" else f"GPU {unit}"
        print_lines(["-" * 80, f"{heading} {_written(found)}", f"Usage reported in {measured}", "-" * 80])
    if report is TOP_USERS:
        rows = rows[:top]
    if parsable or ending:
        show_bare(columns, rows, titles=not noheader, ending=ending)
    else:
        show(Output.TABLE, columns, rows, None, gap=1, titles=not noheader, ruled=True)


def _first(known: Iterable[str], said: str) -> str:
    """The first that begins so, in whatever case; "" where none does."""
    return next((name for name in known if said and name.lower().startswith(said.lower())), "")


def _report_of(said: Sequence[str]) -> tuple[SlurmReport, Sequence[str]]:
    """The report that is meant, and the words behind its name. Raises Failure, which says what to ask instead."""
    kind, name, *rest = (*said, "", "")[: max(2, len(said))]
    reports = REPORTS.get(_first(REPORTS, kind), {})
    report = reports.get(_first(reports, name))
    if report is None:
        named = ((kind, name, each) for kind, of in REPORTS.items() for name, each in of.items())
        known = ", ".join(f"{kind} {name}" for kind, name, each in named if isinstance(each, SlurmReport))
        raise Failure(Exit.USAGE, f"sreport {' '.join(said)}".rstrip() + f": write {known}")
    if isinstance(report, str):
        raise Failure(Exit.USAGE, f"sreport {kind} {name}: {report}")
    return report, rest


def _words(report: SlurmReport, said: Sequence[str]) -> dict[str, str]:
    """Words behind the report by their full names; one that is said twice adds to its list. Raises Failure."""
    known, found = (*report.words, *COMMON), dict[str, str]()
    for word in said:
        name, equals, value = word.partition("=")
        full = _first(known, name)
        if report is TOP_USERS and not equals and _first(("Group",), name):
            why = "two tenants may have users of the same name: each has a line of its own"
            raise Failure(Exit.USAGE, f"sreport {word}: {why}")
        if not full or bool(equals) == (full in BARE):
            ways = [each if each in BARE else f"{each}=" for each in known]
            raise Failure(Exit.USAGE, f"sreport {word}: this report takes {', '.join(ways)}")
        full = "Accounts" if full == "Acct" else full
        listed = full in found and full in ("Users", "Accounts", "Format")
        found[full] = f"{found[full]},{value}" if listed else value
    return found


def _count(words: Mapping[str, str]) -> int:
    text = words.get("TopCount", TOP)
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:9]) == int(text):
        raise Failure(Exit.USAGE, f"sreport topcount={text}: write a number of users")
    return int(text)


def _span(words: Mapping[str, str]) -> tuple[int, int, int]:
    """From when until when, and now, in milliseconds since the epoch. Raises Failure where that is no time."""
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000).astimezone()
    today = now.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    usual = {"Start": today - timedelta(days=1), "End": today}
    since, until = (
        since_ms(Said("sreport", name.lower(), words[name], ""), now) if name in words else int(at.timestamp() * 1000)
        for name, at in usual.items()
    )
    if since >= until:
        raise Failure(Exit.USAGE, "sreport: start= is not before end=, which is today's 00:00 unless told; say end=now")
    return since, until, int(now.timestamp() * 1000)


def _written(found: AccountReport) -> str:
    seconds = (found.until_ts - found.since_ts) // 1000
    return f"{fields.time_of(found.since_ts)} - {fields.time_of(found.until_ts - 1000)} ({seconds} secs)"


def _rows(report: SlurmReport, found: AccountReport, words: Mapping[str, str], cluster: str) -> list[UsageRow]:
    """Rows in the order of the report; who used nothing has none."""
    if report is WHOLE:
        causes = {cause: amount for row in found.rows for cause, amount in row.causes.items()}
        return [UsageRow(cluster, AccountRow("", causes))]
    users, accounts = (words[name].split(",") if name in words else None for name in ("Users", "Accounts"))
    people = [
        row
        for row in _people(found.rows, cluster)
        if row.used and (users is None or row.login in users) and (accounts is None or row.account in accounts)
    ]
    if report is not TREE:
        return people
    # Sums would be of what is shown alone: a choice of users has none, and one of accounts no root.
    rows = [UsageRow(cluster, _summed(people), "root")] if users is None and accounts is None else []
    for account in sorted({row.account for row in people}):
        own = sorted((row for row in people if row.account == account), key=lambda row: row.login)
        if users is None:
            rows.append(UsageRow(cluster, _summed(own), account))
        rows += [row for row in own if row.login]
    return rows


def _people(rows: Iterable[AccountRow], cluster: str) -> list[UsageRow]:
    """Users with their accounts, who used most first; other tenants' together are an account without one."""
    found = []
    for row in rows:
        account, slash, login = row.name.partition("/")
        if slash or row.of(*HAD):  # no run has what is free, out or others'
            found.append(UsageRow(cluster, row, account, login))
    return sorted(found, key=lambda row: (-row.used, row.account, row.login))


def _summed(rows: Iterable[UsageRow]) -> AccountRow:
    return AccountRow("", {GpuCause.USED: sum(row.used for row in rows)})


def _field(report: SlurmReport, said: str) -> tuple[str, int]:
    """A field by its name, cut short as one likes, and its width. Raises Failure."""
    name, _, width = said.partition("%")
    field = _first(report.known, name)
    if not field or (width and not width.lstrip("-").isdigit()):
        raise Failure(Exit.USAGE, f"format={said}: there is no such field; there are {', '.join(report.known)}")
    return field, int(width.lstrip("-") or 0)


def _column(field: str, wide: int, unit: str, capacity: int) -> Column[UsageRow]:
    if field in TEXTS:
        title, text = TEXTS[field]
        return Column(title, lambda row: fields.cut(text(row), wide, False))
    title, amount = AMOUNTS[field]
    return Column(title, lambda row: fields.cut(_shown(amount(row), unit, capacity), wide, True), right=True)


def _shown(amount: int, unit: str, capacity: int) -> str:
    """An amount in the unit, or in percent of the capacity, rounded."""
    whole = UNITS[unit]
    if whole:
        return str((2 * amount + whole) // (2 * whole))
    hundredths = (20_000 * amount + capacity) // (2 * capacity) if capacity else 0  # of a shard without GPUs
    return f"{hundredths // 100}.{hundredths % 100:02}%"
