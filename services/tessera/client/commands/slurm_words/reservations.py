"""`scontrol create reservation`, `delete reservation` and `show reservation`: reservations in Slurm's words."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from tessera.client.commands.context import AccessOptions
from tessera.client.commands.nodes.reservations import end, give, reserve, rows_of
from tessera.client.outcomes import Exit, Failure
from tessera.client.slurm import values
from tessera.client.slurm.listing import fields
from tessera.kernel.clock import SystemClock

if TYPE_CHECKING:
    from tessera.gateway.operations.slot_models import ReservationRow

KNOWN = frozenset(
    {"reservationname", "reservation", "starttime", "endtime", "duration", "nodes", "nodecnt", "accounts", "users"}
    | {"partitionname", "partition", "flags", "comment"}
)
REFUSED_FLAGS = (
    "MAINT, IGNORE_JOBS, SPEC_NODES and ANY_NODES are taken; of DAILY and WEEKLY say --repeat of "
    "`tessera reservation create`"
)
FLAGS = frozenset({"maint", "ignore_jobs", "spec_nodes", "any_nodes"})


async def reservation_order(at: AccessOptions, what: str, said: Sequence[str]) -> str:
    """Makes or ends a reservation as Slurm's words say it; the words for people. Raises Failure."""
    words = [word for word in said if word.lower() not in ("reservation", "res")]
    pairs = {name.lower(): value for name, _, value in (word.partition("=") for word in words)}
    if what == "delete":
        name = pairs.get("reservationname") or pairs.get("reservation") or (words[0] if words else "")
        return await end(at, name)
    unknown = sorted(set(pairs) - KNOWN)
    if unknown:
        raise Failure(Exit.USAGE, f"scontrol create reservation: {unknown[0]}: is not taken here; see docs/slurm.md")
    flags = {flag.lower() for flag in pairs.get("flags", "").split(",") if flag}
    if flags - FLAGS:
        raise Failure(
            Exit.USAGE, f"scontrol create reservation: Flags={','.join(sorted(flags - FLAGS))}: {REFUSED_FLAGS}"
        )
    wish = _wish(pairs)
    order = reserve(**wish, pool=await _pool(at, pairs, wish.get("nodes")))
    if order.who == () and "maint" not in flags:
        raise Failure(Exit.USAGE, "scontrol create reservation: say Accounts= or Users=, or Flags=MAINT for nobody")
    return await give(at, order, yes=True)


def _wish(pairs: dict[str, str]) -> dict[str, object]:
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000).astimezone()

    def value_of(name: str) -> values.Said:
        return values.Said("scontrol create reservation", name, pairs[name.lower()], sign="")

    if "starttime" not in pairs or ("endtime" in pairs) is ("duration" in pairs):
        raise Failure(Exit.USAGE, "scontrol create reservation: say StartTime= and one of Duration= and EndTime=")
    start = values.begin_ms(value_of("StartTime"), now)
    length = values.seconds_of(value_of("Duration")) * 1000 if "duration" in pairs else 0
    end_ts = start + length if length else values.begin_ms(value_of("EndTime"), now)
    wish: dict[str, object] = {
        "name": pairs.get("reservationname") or pairs.get("reservation") or f"res-{start // 1000}",
        "windows": [{"start_ts": start, "end_ts": end_ts}],
        "who": sorted({*_listed(pairs.get("accounts", "")), *_listed(pairs.get("users", ""))}),
        "why": pairs.get("comment", ""),
    }
    nodes = pairs.get("nodes", "")
    if nodes and nodes.upper() != "ALL":
        wish["nodes"] = sorted(values.hosts_of(value_of("Nodes")))
    elif "nodecnt" in pairs:
        wish["node_count"] = values.count_of(value_of("NodeCnt"))
    elif not nodes:
        raise Failure(Exit.USAGE, "scontrol create reservation: say Nodes=, Nodes=ALL or NodeCnt=")
    return wish


async def _pool(at: AccessOptions, pairs: dict[str, str], nodes: object) -> str:
    """The pool of the partition that is said, of the nodes, or the only one. Raises Failure."""
    views, partition = at.views(), pairs.get("partitionname") or pairs.get("partition")
    if partition:
        found = {queue.pool for queue in await views.queues() if queue.name == partition}
    else:
        found = {node.pool for node in await views.nodes() if not isinstance(nodes, list) or node.name in nodes}
    if len(found) != 1:
        none = "the nodes are of several pools or of none: say PartitionName="
        what = f"there is no queue {partition}" if partition else none
        raise Failure(Exit.USAGE, f"scontrol create reservation: {what}")
    return found.pop()


def _listed(text: str) -> Iterable[str]:
    return filter(None, text.split(","))


async def reservation_records(at: AccessOptions, name: str) -> list[str]:
    """The records of reservations as `scontrol show reservation` has them. Raises Failure."""
    rows, _ = await rows_of(at.find())
    found = [row for row in rows if name in ("", row.name)]
    if name and not found:
        raise Failure(Exit.NOT_FOUND, f"Reservation {name} not found")
    return [line for row in found for line in _record(row)] or ["No reservations in the system"]


def _record(row: "ReservationRow") -> Iterator[str]:
    first, users = row.windows[0], ",".join(who.partition("/")[2] for who in row.who if "/" in who)
    accounts = ",".join(sorted({who.partition("/")[0] for who in row.who}))
    seconds = (first.end_ts - first.start_ts) // 1000
    yield (
        f"ReservationName={row.name} StartTime={fields.time_of(first.start_ts)} EndTime={fields.time_of(first.end_ts)} "
        f"Duration={seconds // 86400:02}-{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    )
    flags = "MAINT" if row.is_maintenance else ""
    yield f"   Nodes={','.join(row.nodes)} NodeCnt={len(row.nodes)} PartitionName=(null) Flags={flags}"
    yield f"   Users={users or '(null)'} Accounts={accounts or '(null)'} State={'ACTIVE' if row.is_now else 'INACTIVE'}"
    yield f"   Comment={row.why or '(null)'}"
    yield ""
