"""
What every test here ends with: the invariant checker and the replay, on what the real servers hold.

Everything is read again from where it is stored: the ledger, the events, Redis, the pods. Nothing of it is taken from
what the test saw on its way, except the watch of the pods and the list of acknowledged submits.
"""

from collections.abc import Mapping

from tessera.client.ledger.reading import ledger_of
from tessera.client.ledger.replay import verify
from tessera.kernel.errors import Transient
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera.kernel.redis.store import RedisStore
from tessera.kernel.redis.views_digest import views_digest
from tessera.projection.events import START, Cursor, last_cursor
from tessera.projection.views import all_views
from tessera.testkit.checker import Report, check
from tessera.testkit.events_checker import check_events
from tessera.testkit.pays_checker import check_pays
from tessera.testkit.relations_checker import check_relations
from tessera.testkit.rules_checker import check_rules
from tessera.testkit.sessions_checker import check_sessions
from tessera_schemas import subjects
from tessera_schemas.events import CURSOR_HEADER
from tessera_schemas.shard.keys import VIEWS
from tests.e2e.live import SECONDS, Live, eventually

EXAMINED = ("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I12", "I13")
"""I11, refused input, is looked at where a turned-away job is named again; the tests of bad input look further."""
COUNTED = ("messages", "facts", "allocated", "placements", "events", "submits", "pod changes", "binds")

Event = tuple[str, Mapping[str, str], bytes]


async def assert_all_is_well(live: Live, *, by_older_engine: bool = False) -> Report:
    """
    Wait until everything has ended and is published, then hold all that is stored against the design.

    Every decision is recomputed, unless an older engine took some, which are only found valid. Returns the checker's
    report, for what a test wants to count besides.
    """
    await live.until_idle()
    await eventually(lambda: _no_pods(live), "no pod is left on the cluster")
    await eventually(lambda: not _shown(live), "the watch has shown that none is left")
    async with live.store() as store:
        stored, events, digest = await _all_of_one_moment(live, store)
        # Nothing is waited for from here on: what is folded here has moved no further either.
        report = check(
            stored,
            shard=live.shard_name,
            pods=live.pods,
            acknowledged=live.acknowledged,
            digests=(digest, rebuilt_digest(stored)),
            drained=True,
        )
        check_events(report, stored, events, shard=live.shard_name, drained=True)
        check_rules(report, stored)
        check_pays(report, stored)
        check_relations(report, stored)
        check_sessions(report, stored, [(change.n, change.object) for change in live.pods])
        assert report.violations == [], report.violations[:10]  # said, too, where pytest is not there to say it
        unseen = [kind for kind in (*EXAMINED, *COUNTED) if not report.examined[kind]]
        assert not unseen, f"nothing was examined of {unseen}: {dict(report.examined)}"
        assert report.examined["messages"] == len(stored) == live.state.n
        assert report.examined["submits"] == len(live.acknowledged)
        replay = verify(stored)
        assert replay.findings == [], replay.findings[:10]
        assert replay.ok
        assert replay.recomputed + replay.not_recomputed == replay.messages == len(stored)
        assert bool(replay.not_recomputed) == by_older_engine
        assert replay.state_hash == live.shard.hasher.of(live.state)
    return report


async def stored_ledger(live: Live) -> list[bytes]:
    """Every message as JetStream holds it."""
    return [data async for _, data in ledger_of(live.bus, live.shard_name).messages()]


async def stored_events(live: Live) -> list[Event]:
    """The whole stream of events, of all tenants."""
    shard = live.shard_name
    stream, everything = subjects.stream("EVENTS", shard), f"events.{shard}.>"
    last = await live.bus.last(stream, everything)
    source, found = live.bus.follow(stream, everything, 0), list[Message]()
    try:
        while last is not None and (not found or found[-1].seq < last.seq):
            found += await source.next(timeout=SECONDS)
    finally:
        await source.close()
    return [(message.subject, message.headers, message.data) for message in found]


def rebuilt_digest(stored: list[bytes]) -> str:
    """The hash of the views as they follow from the ledger alone."""
    shard = Shard()
    for n, data in enumerate(stored, start=1):
        shard.fold(decode_entry(Message("", n, data)))
    rows: dict[str, dict[str, bytes]] = {view: {} for view in VIEWS}
    for change in all_views(shard.state):
        if change.value is not None:
            rows[change.view][change.key] = change.value
    return views_digest(rows)


async def _all_of_one_moment(live: Live, store: RedisStore) -> tuple[list[bytes], list[Event], str]:
    """
    The ledger, the events, and the hash of the views.

    Read again when the ledger has moved meanwhile: nodes are seen and prices learnt when every job has ended, too.
    """
    while True:
        await eventually(lambda: _caught_up(live, store), "events and views are those of the ledger's end")
        n, events, digest = live.state.n, await stored_events(live), await store.digest()
        stored = await stored_ledger(live)
        if n == len(stored) == live.state.n:
            return stored, events, digest


async def _caught_up(live: Live, store: RedisStore) -> bool:
    newest = next(filter(None, map(_last_cursor, range(live.state.n, 0, -1), reversed(live.stored))), START)
    shard = live.shard_name
    try:
        last = await live.bus.last(subjects.stream("EVENTS", shard), f"events.{shard}.>")
        held = await store.cursor()
    except Transient:
        return False
    published = START if last is None else Cursor.parse(last.headers[CURSOR_HEADER])
    return published == newest and held == live.state.n


def _last_cursor(n: int, stored: bytes) -> Cursor | None:
    return last_cursor(decode_entry(Message("", n, stored)).message)


def _shown(live: Live) -> dict[str, None]:
    """The UIDs of the pods that are there as far as the watch has come."""
    left: dict[str, None] = {}
    for change in live.pods:
        uid = change.object["metadata"]["uid"]
        if change.type == "DELETED":
            left.pop(uid, None)
        else:
            left[uid] = None
    return left


async def _no_pods(live: Live) -> bool:
    cluster = live.cluster()
    try:
        found, _ = await cluster.list("pods")
    finally:
        await cluster.close()
    return not [pod for pod in found if live.is_ours(pod)]
