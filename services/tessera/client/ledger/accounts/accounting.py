"""The account of a stored ledger over one stretch of time, summed up by one name; amounts are exact integers."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tessera.client.connect.api import Api
from tessera.client.ledger.reading import LedgerBackup, LedgerFile, StoredLedger
from tessera.client.outcomes import Exit, Failure
from tessera.client.views.live import progress_of
from tessera.client.views.rendering import local_time
from tessera.engine.accounts.account import Account, AccountBooks, NoteUse
from tessera.engine.accounts.dividing import NodeDivider, by_flavor
from tessera.engine.accounts.naming import Naming
from tessera.engine.accounts.owners import USE, AnyResource, GpuCause, GpuOwner, OwnedAmounts, Resource
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera_schemas.cluster.device_claims import OF_CLASS
from tessera_schemas.work.money import Money


@dataclass(frozen=True, slots=True)
class AccountRow:
    """
    Amounts are thousandths of a GPU or CPU, or bytes of memory, times milliseconds.

    `causes` have what of it was measured and worked, too, which are no part of the sum.
    """

    name: str
    causes: dict[str, int]

    @property
    def sum(self) -> int:
        """Sum of all causes."""
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, int]:
        """Causes that sum up."""
        return {cause: amount for cause, amount in self.causes.items() if cause not in USE}

    @property
    def use(self) -> dict[str, int]:
        """GPU time whose use was told, and of that what worked; empty where nothing was."""
        return {cause: amount for cause, amount in self.causes.items() if cause in USE}

    def of(self, *causes: GpuCause) -> int:
        """Sum of these causes."""
        return sum(self.causes.get(cause, 0) for cause in causes)


@dataclass(frozen=True, slots=True)
class AccountReport:
    """
    `rows` sum to `capacity`: what the cluster had from `since_ts` on until `until_ts`; of a class of devices there is
    no capacity, 0. Message `n` was read last.
    """

    rows: tuple[AccountRow, ...]
    capacity: int
    since_ts: int
    until_ts: int
    n: int

    @property
    def sum(self) -> int:
        """Sum of all rows."""
        return sum(row.sum for row in self.rows)


class SpanBooks:
    """Books of an account that keep what lies between two moments of a resource; 0 stands for no bound."""

    def __init__(self, since_ts: int, until_ts: int, naming: Naming, resource: AnyResource) -> None:
        self._since, self._until, self._naming, self._resource = since_ts, until_ts, naming, resource
        self.capacity = 0
        self._names: defaultdict[str, Counter[GpuCause]] = defaultdict(Counter)

    def add(self, owner: GpuOwner, amounts: OwnedAmounts, start_ts: int, end_ts: int) -> None:
        """See `AccountBooks`."""
        end_ts = min(end_ts, self._until or end_ts)
        amount = owner.part(amounts, self._resource) * max(0, end_ts - max(start_ts, self._since))
        if owner.cause is GpuCause.CAPACITY:
            self.capacity += amount
        elif amount:
            self._names[self._naming(owner)][owner.cause] += amount

    def note_use(self, owner: GpuOwner, amount: int, ts: int) -> None:
        """Keeps what was told of the use of GPUs at `ts`, within the bounds."""
        if self._since <= ts < (self._until or ts + 1):
            self._names[self._naming(owner)][owner.cause] += amount

    def rows(self) -> tuple[AccountRow, ...]:
        """Rows as `sorted_rows` has them."""
        return sorted_rows(self._names)


def sorted_rows(names: Mapping[str, Mapping[GpuCause, int]]) -> tuple[AccountRow, ...]:
    """Rows of amounts by name and cause, the largest first, then those that name nobody."""
    # Of what worked less than nothing may be told, where a later measurement covers more.
    found = [
        AccountRow(name, {cause: at[cause] for cause in GpuCause if at.get(cause, 0) > 0}) for name, at in names.items()
    ]
    return tuple(sorted(found, key=lambda row: (row.name.endswith(")"), -row.sum, row.name)))


async def read_account(
    ledger: StoredLedger | LedgerFile | LedgerBackup,
    books: AccountBooks,
    until_ts: int,
    priced: Callable[[Money | None], None] = lambda money: None,
    divide: NodeDivider = by_flavor,
    note_use: NoteUse | None = None,
) -> tuple[int, int, int]:
    """
    Writes the account into books; returns from when until when, and up to which message. `until_ts` 0 is no bound.

    `priced` is called with the prices in force before what is held by them is counted. Raises InvariantViolation.
    """
    opening, count = await ledger.opened_shard(), await ledger.count()
    shard = opening or Shard()
    priced(shard.state.tree.money)
    account = Account(books, shard.state, divide=divide, note_use=note_use)
    begin = shard.state.ts
    with progress_of("report", count - shard.state.n) as advance:
        async for seq, data in ledger.messages():
            entry = decode_entry(Message("", seq, data))
            shard.fold(entry)
            account.take(entry.message, shard.state)
            priced(shard.state.tree.money)
            begin = begin or entry.message.ts
            advance()
            if until_ts and account.upto >= until_ts:
                break
    account.settle()
    return begin, account.upto, shard.state.n


async def account_report(
    ledger: StoredLedger | LedgerFile | LedgerBackup,
    since_ts: int,
    until_ts: int,
    naming: Naming,
    divide: NodeDivider = by_flavor,
    resource: AnyResource = Resource.GPU,
    with_use: bool = False,
) -> AccountReport:
    """
    Reads the ledger from where it begins; 0 stands for its beginning, or its end. `with_use`: with what worked.

    Raises Failure where it has nothing of that time, InvariantViolation where it contradicts itself.
    """
    books = SpanBooks(since_ts, until_ts, naming, resource)
    note = books.note_use if with_use and resource == Resource.GPU else None
    begin, upto, n = await read_account(ledger, books, until_ts, divide=divide, note_use=note)
    since, until = max(since_ts, begin), min(until_ts or upto, upto)
    if since >= until:
        begins, ends = (f"{local_time(ts):%Y-%m-%d %H:%M}" for ts in (begin, upto))
        held = f"of {begins} to {ends}" if begin else "empty"
        raise Failure(Exit.NOT_FOUND, f"ledger: has nothing of that time, it is {held}; ask for a part of that")
    return AccountReport(books.rows(), books.capacity, since, until, n)


async def served_report(
    api: Api, since_ts: int, until_ts: int, by: str, used_apart: bool = False, resource: AnyResource = Resource.GPU
) -> AccountReport:
    """
    The account as the gateway has it, in full hours; 0 stands for its beginning, or its end. Rows by a field, or cause.

    With `used_apart` all that is used is in a row of its own, as `idle_by` has it. Raises as `Api.get` does, and
    Failure where there is nothing of that time.
    """
    # An older gateway knows GPUs alone, and refuses the name of the field.
    asked = {} if resource == Resource.GPU else {"resource": str(resource)}
    found = await api.get("/v1/account", since=since_ts, until=until_ts, by=by, **asked)
    if not found["capacity"] and not resource.startswith(OF_CLASS):
        whole = "`tessera report --from-ledger` reads the whole ledger"
        raise Failure(Exit.NOT_FOUND, f"account: the gateway has nothing of that time; {whole}")
    names: defaultdict[str, Counter[GpuCause]] = defaultdict(Counter)
    for item in found["items"]:
        for cause, amount in item["causes"].items():
            used = used_apart and by != "cause" and cause == GpuCause.USED
            name = (f"{item['name']} (used)" if by == "flavor" else "(used)") if used else item["name"]
            names[name][GpuCause(cause)] += amount
        for cause in USE if not used_apart else ():
            names[item["name"]][cause] += item.get(cause, 0)
    times = int(found["since_ts"]), int(found["until_ts"])
    return AccountReport(sorted_rows(names), int(found["capacity"]), *times, int(found["as_of"]))
