"""`sshare` and `sprio`: shares of queues, tenants and users, and what a place in line is made of, in Slurm's words."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import typer

from tessera.client.commands.context import AccessOptions, command
from tessera.client.commands.slurm_words.squeue import JobLists, list_of, print_lines
from tessera.client.connect.connecting import bound_user
from tessera.client.outcomes import Exit, Failure
from tessera.client.slurm.listing import fields
from tessera.client.slurm.listing.queue_fields import line_of, titles_over
from tessera.client.slurm.listing.words import elapsed, submitter
from tessera.client.views.rendering import Column, Output, show, show_bare, show_value
from tessera.kernel.clock import SystemClock
from tessera_schemas.text.units import format_milli
from tessera_schemas.views import JobView, ShareView

GPU_SECOND, MILLION = 1_000_000, 1_000_000


def _part(amount: int, whole: int = MILLION) -> str:
    return f"{amount / whole:.6f}" if whole else "0.000000"


class ShareRow(NamedTuple):
    """A row, what was used in its level, and in its pool."""

    share: ShareView
    level_used: int
    pool_used: int

    @property
    def used(self) -> int:
        """GPU time that counts yet, in thousandths of a GPU times milliseconds."""
        return self.share.used_gpu_milli_ms


def _level_fs(row: ShareRow) -> str:
    effective = row.used / row.level_used if row.level_used else 0
    return f"{row.share.share_ppm / MILLION / effective:.6f}" if effective else "inf"


SHARE_FIELDS: Mapping[str, Callable[[ShareRow], str]] = {
    "Account": lambda row: row.share.tenant or ("root" if row.share.level == "queue" else "(others)"),
    "User": lambda row: row.share.user,
    "Partition": lambda row: row.share.queue,
    "RawShares": lambda row: str(row.share.weight),
    "NormShares": lambda row: _part(row.share.share_ppm),
    "RawUsage": lambda row: str(row.used // GPU_SECOND),
    "NormUsage": lambda row: _part(row.used, row.pool_used),
    "EffectvUsage": lambda row: _part(row.used, row.level_used),
    "FairShare": lambda row: _part(row.share.of - row.share.place + 1, row.share.of) if row.share.place else "",
    "LevelFS": _level_fs,
    "GPUs": lambda row: format_milli(row.share.held_gpu_milli),
    "GPUAverage": lambda row: format_milli(row.share.average_gpu_milli),
    "Factor": lambda row: _part(row.share.factor),
    "Place": lambda row: str(row.share.place or ""),
}
USUAL = "Account,User,Partition,RawShares,NormShares,RawUsage,EffectvUsage,FairShare"
IN_FULL = "Account,User,Partition,RawShares,NormShares,RawUsage,NormUsage,EffectvUsage,FairShare,LevelFS"
IN_FULL += ",GPUs,GPUAverage,Factor,Place"
LEFT = frozenset({"Account", "User", "Partition"})


@command
async def sshare(
    at: AccessOptions,
    everybody: Annotated[bool, typer.Option("--all", "-a", help="All users, not only oneself")] = False,
    accounts: Annotated[str | None, typer.Option("--accounts", "-A", help="Only these tenants")] = None,
    users: Annotated[str | None, typer.Option("--users", "-u", help="Only these users")] = None,
    long: Annotated[bool, typer.Option("--long", "-l", help="With what is held, factor and place")] = False,
    names: Annotated[str | None, typer.Option("--format", "-o", help="Fields, as Account,RawUsage%20; or json")] = None,
    parsable: Annotated[bool, typer.Option("--parsable2", "-P", help="Fields with | between them")] = False,
    ending: Annotated[bool, typer.Option("--parsable", "-p", help="The same, with a | at the end")] = False,
    noheader: Annotated[bool, typer.Option("--noheader", "-n", help="Without the line of titles")] = False,
    help_format: Annotated[bool, typer.Option("--helpformat", "-e", help="List the fields")] = False,
) -> None:
    """
    List shares: an account is a tenant, root its queue; RawUsage is the GPU-seconds that count yet by the half-life.

    FairShare is 1 for whom the line takes first of its level, and less for each place behind; `tessera share --why`
    lists the runs.
    """
    if help_format:
        print_lines([*SHARE_FIELDS])
        return
    views = at.views()
    found, as_of = await views.shares(), await views.as_of()
    own = None if everybody else await bound_user(at.find(), at.identity) or submitter()
    people = {own} if users is None else set(users.split(","))
    tenants = None if accounts is None else set(accounts.split(","))
    levels, pools = Counter[tuple[str, ...]](), Counter[str]()
    for row in found:
        levels[_level_of(row)] += row.used_gpu_milli_ms
        pools[row.pool] += row.used_gpu_milli_ms if row.level == "queue" and not row.parent else 0
    rows = [
        ShareRow(row, levels[_level_of(row)], pools[row.pool])
        for row in found
        if (row.level != "user" or (users is None and everybody) or row.user in people)
        and (tenants is None or row.level == "queue" or row.tenant in tenants)
    ]
    if names == "json":
        show_value(Output.JSON, {"items": [row.share.model_dump() for row in rows]}, as_of)
        return
    columns = [_column(name) for name in (names or (IN_FULL if long else USUAL)).split(",")]
    if parsable or ending:
        show_bare(columns, rows, titles=not noheader, ending=ending)
    else:
        show(Output.TABLE, columns, rows, None, gap=1, titles=not noheader, ruled=True)


def _level_of(row: ShareView) -> tuple[str, ...]:
    """Part of a row that is the same for all that share with each other."""
    at = {"queue": (row.parent,), "tenant": (row.queue,), "user": (row.queue, row.tenant)}[row.level]
    return (row.level, row.pool, *at)


def _column(said: str) -> Column[ShareRow]:
    """A column by the name of its field, cut short as one likes, and a width. Raises Failure."""
    name, _, width = said.partition("%")
    known = [field for field in SHARE_FIELDS if name and field.lower().startswith(name.lower())]
    if not known or (width and not width.lstrip("-").isdigit()):
        raise Failure(Exit.USAGE, f"format={said}: there is no such field; there are {', '.join(SHARE_FIELDS)}")
    value, wide = SHARE_FIELDS[known[0]], int(width.lstrip("-") or 0)
    return Column(known[0], lambda row: fields.cut(value(row), wide, False), right=known[0] not in LEFT)


class PlaceRow(NamedTuple):
    """A waiting job, its place in line, and the shares of its queue, its tenant and its user."""

    job: JobView
    place: int
    borrows: bool
    queue: ShareView
    tenant: ShareView
    user: ShareView
    now_ms: int

    @property
    def shares(self) -> dict[str, ShareView]:
        """Shares of its queue, its tenant and its user, by level."""
        return {"queue": self.queue, "tenant": self.tenant, "user": self.user}

    @property
    def quota(self) -> str:
        """Whether it is within its queue's own quota; nothing for a job beyond the line's order."""
        return ("borrowed" if self.borrows else "nominal") if self.place else "-"


def _share(level: str, norm: bool = False) -> Callable[[PlaceRow], str]:
    def shown(row: PlaceRow) -> str:
        share = row.shares[level]
        if norm:
            return _part(share.of - share.place + 1, share.of) if share.place else "-"
        return _part(share.factor)

    return shown


PLACE_LETTERS: Mapping[str, tuple[str, Callable[[PlaceRow], str]]] = {
    "i": ("JOBID", lambda row: fields.job_id_of(row.job)),
    "r": ("PARTITION", lambda row: row.job.queue),
    "o": ("ACCOUNT", lambda row: row.job.tenant),
    "u": ("USER", lambda row: row.job.user or row.job.tenant),
    "x": ("PLACE", lambda row: str(row.place or "-")),
    "b": ("QUOTA", lambda row: row.quota),
    "n": ("QOS", lambda row: row.job.priority_class),
    "Y": ("PRIORITY", lambda row: str(row.job.priority)),
    "G": ("QUEUE", _share("queue")),
    "F": ("FAIRSHARE", _share("tenant")),
    "U": ("USERSHARE", _share("user")),
    "g": ("QUEUE", _share("queue", norm=True)),
    "f": ("FAIRSHARE", _share("tenant", norm=True)),
    "v": ("USERSHARE", _share("user", norm=True)),
    "h": ("HELD", lambda row: format_milli(row.tenant.held_gpu_milli)),
    "d": ("AVERAGE", lambda row: format_milli(row.tenant.average_gpu_milli)),
    "w": ("WEIGHT", lambda row: str(row.tenant.weight)),
    "A": ("AGE", lambda row: elapsed(row.now_ms - row.job.submitted_ts)),
    "S": ("SUBMIT", lambda row: fields.time_of(row.job.submitted_ts)),
}
"""What a place in line is made of, from the outermost rule to the innermost, by the letters of `sprio -o`."""
PRIO_USUAL, PRIO_LONG, PRIO_LEFT = "irxubYGFUA", "irxoubnYGFUhdwAS", "iroubn"
NORMALISED = str.maketrans("GFU", "gfv")


@command
async def sprio(
    at: AccessOptions,
    jobs: JobLists = None,
    users: Annotated[str | None, typer.Option("--user", "--users", "-u", help="Only of these, or tenants")] = None,
    partition: Annotated[str | None, typer.Option("--partition", "-p", help="Only these queues")] = None,
    long: Annotated[bool, typer.Option("--long", "-l", help="With class, and what the tenant has")] = False,
    norm: Annotated[bool, typer.Option("--norm", "-n", help="Shares as 1 for the first, less behind")] = False,
    noheader: Annotated[bool, typer.Option("--noheader", "-h", help="Without the line of titles")] = False,
    pattern: Annotated[
        str | None, typer.Option("--format", "--output", "-o", help="A pattern such as '%i %b %Y %F', or json")
    ] = None,
) -> None:
    """
    List what the places of waiting jobs are made of, the next one first; `tessera explain JOB` says it in a sentence.

    First goes who is within its nominal quota (QUOTA), then the higher PRIORITY, then the least share of QUEUE, tenant
    (FAIRSHARE) and user: part of the pool held now and on average, over the weight. Equal ones go by age.
    """
    views, now_ms = at.views(), SystemClock().now_ms()
    known, places = await views.jobs(("queued",)), await views.places()
    found = [row for row in await views.shares() if not row.others]
    shares: dict[tuple[str, ...], ShareView] = {(row.level, row.queue, row.tenant, row.user): row for row in found}
    as_of = await views.as_of()
    rows = [
        _place_row(job, places.get(job.job_id, {}), shares, now_ms)
        for job in fields.select(known, user=users, queue=partition, named=list_of(jobs))
    ]
    rows.sort(key=lambda row: (not row.place, row.place, -row.job.priority, row.job.submitted_ts, row.job.job_id))
    if pattern == "json":
        show_value(Output.JSON, {"items": [_as_json(row) for row in rows]}, as_of)
        return
    letters = (PRIO_LONG if long else PRIO_USUAL).translate(NORMALISED if norm else {})
    if pattern is None:
        columns = [Column(*PLACE_LETTERS[letter], right=letter not in PRIO_LEFT) for letter in letters]
        show(Output.TABLE, columns, rows, None, gap=1, titles=not noheader)
        return
    line = line_of(pattern, {letter: value for letter, (_, value) in PLACE_LETTERS.items()})
    titles = titles_over(pattern, {letter: title for letter, (title, _) in PLACE_LETTERS.items()})
    print_lines([*([] if noheader else [titles]), *map(line, rows)])


def _place_row(
    job: JobView, place: Mapping[str, Any], shares: Mapping[tuple[str, ...], ShareView], now_ms: int
) -> PlaceRow:
    """The shares are by level, queue, tenant and user; who has none yet holds and has used nothing."""
    queue, tenant, user = (
        shares.get((level, job.queue, *names)) or ShareView(level=level)
        for level, names in (("queue", ("", "")), ("tenant", (job.tenant, "")), ("user", (job.tenant, job.user)))
    )
    return PlaceRow(job, place.get("position", 0), place.get("borrows", False), queue, tenant, user, now_ms)


def _as_json(row: PlaceRow) -> dict[str, Any]:
    said = {field: getattr(row.job, field) for field in ("job_id", "number", "queue", "tenant", "user")}
    said |= {field: getattr(row.job, field) for field in ("priority_class", "priority", "submitted_ts")}
    levels = {level: share.model_dump() for level, share in row.shares.items()}
    return {**said, "place": row.place, "quota": row.quota, "shares": levels}
