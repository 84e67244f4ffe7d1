"""
Shares: each queue, tenant in it and user of that tenant by weight, now and by history, and who goes first. Pure.

Names share with those beside them: queues below one, tenants of a queue, users of a tenant. `factor` is what the line
compares of them, below nominal quota and class; the least goes first. All is as of the state's last record, but what a
half-life counts in `factor`, which is as orders read it.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from tessera.domain.devices.resources import NOTHING, Amount
from tessera.domain.entities import Job
from tessera.domain.state import State
from tessera.engine.queueing.ordering import SHARE_UNIT, WEIGHT_UNIT, PoolLine, weighted_share
from tessera_schemas.views import ShareView

LEVELS: tuple[Literal["queue"], Literal["tenant"], Literal["user"]] = ("queue", "tenant", "user")
RowNames = tuple[str, ...]
"""Queue, then tenant, then user, as far as the row tells them apart."""


def shares(state: State) -> tuple[ShareView, ...]:
    """Rows of each pool, a name before those below it; of tenants and users those that hold, wait or have history."""
    held, known = _held(state), defaultdict[RowNames, set[str]](set)
    waiting = ((queue, *who) for queue, lines in state.index.lines.items() for who in _waiting(lines))
    rows = (tuple(name.split("/")) for name, _ in state.decayed.items())
    for names in (*held, *waiting, *rows):
        for level in range(1, len(names)):
            known[names[:level]].add(names[level])
    found = [row for pool in sorted(state.tree.queues_of) for row in _PoolShares(state, pool, held, known).rows()]
    return (*found, *_folded(state))


def _waiting(lines: Mapping[str, Mapping[str, object]]) -> Iterator[RowNames]:
    return ((tenant, user) for tenant, users in lines.items() for user in users)


def _held(state: State) -> dict[RowNames, Amount]:
    held: dict[RowNames, Amount] = {}
    for run in state.runs.values():
        for who in ((run.queue,), (run.queue, run.tenant), (run.queue, run.tenant, run.user)):
            held[who] = held.get(who, NOTHING).plus(run.amount)
    return held


def _folded(state: State) -> Iterator[ShareView]:
    # Names that were too many to be told apart; of no pool, and nobody's place.
    for at, level in enumerate(LEVELS):
        row = state.decayed.get("/" * at)
        if row is not None and state.decay is not None:
            used = state.decay.used(row, state.ts)
            average = state.decay.average_of(used)
            yield ShareView(level=level, others=True, used_gpu_milli_ms=used, average_gpu_milli=average)


class _PoolShares:
    """Rows of one pool; `known` are names by those above them."""

    def __init__(self, state: State, pool: str, held: dict[RowNames, Amount], known: dict[RowNames, set[str]]) -> None:
        self._state, self._pool, self._held, self._known = state, pool, held, known
        self._line = PoolLine(state, pool, state.ts)

    def rows(self) -> Iterator[ShareView]:
        tree = self._state.tree
        return self._level([(queue,) for queue in sorted({tree.roots[leaf] for leaf in tree.queues_of[self._pool]})])

    def _level(self, beside: list[RowNames]) -> Iterator[ShareView]:
        stands = [self._stand(names) for names in beside]
        keys = sorted(key for key, _ in stands)
        total = sum(row.weight for _, row in stands)
        for (key, row), names in zip(stands, beside, strict=True):
            place = {"place": bisect_left(keys, key) + 1, "of": len(keys)}
            yield row.model_copy(update={"share_ppm": row.weight * SHARE_UNIT // total if total else 0, **place})
            children = self._state.tree.children.get(names[0]) if len(names) == 1 else None
            stem, below = ((), children) if children else (names, self._known.get(names, ()))
            yield from self._level([(*stem, name) for name in sorted(below)])

    def _stand(self, names: RowNames) -> tuple[tuple[int, int], ShareView]:
        """Key that is compared, and the row without its place."""
        history, tree, queue, tenant, user = self._line.history, self._state.tree, *(*names, "", "")[:3]
        if len(names) == 1:
            held, _, past = self._line.sum(queue)
            weight, used = tree.queues[queue].weight, self._used_below(queue)
        else:
            held, past, used = (
                self._held.get(names, NOTHING),
                history.used_of(history.row_of("/".join(names))),
                self._used(names),
            )
            weight = tree.tenants[tenant].weight if len(names) == 2 and tenant in tree.tenants else 1
        key = weighted_share(held, self._line.capacity, weight, history.share(past))
        decay = self._state.decay
        return key, ShareView(
            pool=self._pool,
            level=LEVELS[len(names) - 1],
            queue=queue,
            parent=(tree.queues[queue].parent or "") if len(names) == 1 else "",
            tenant=tenant,
            user=user,
            weight=weight,
            held_gpu_milli=held.gpu_milli,
            used_gpu_milli_ms=used,
            average_gpu_milli=0 if decay is None else decay.average_of(used),
            factor=key[1] // (WEIGHT_UNIT if weight else 1),
        )

    def _used(self, names: RowNames) -> int:
        state = self._state
        return 0 if state.decay is None else state.decay.used(state.decayed.get("/".join(names)), state.ts)

    def _used_below(self, queue: str) -> int:
        return self._used((queue,)) + sum(map(self._used_below, self._state.tree.children.get(queue, ())))


def seen_by(rows: Iterable[ShareView], tenant: str | None, queues: Collection[str]) -> Iterator[ShareView]:
    """Rows that a tenant sees, None an operator: its queues, itself, its users, and other tenants of a queue in sum."""
    if tenant is None:
        yield from rows
        return
    hidden = list[ShareView]()
    for row in (row for row in rows if row.queue in queues):
        if row.level == "queue":
            yield from _in_sum(hidden)
            hidden = []
        if row.level == "queue" or row.tenant == tenant:
            yield row
        elif row.level == "tenant":
            hidden.append(row)
    yield from _in_sum(hidden)


def _in_sum(rows: Sequence[ShareView]) -> Iterator[ShareView]:
    if rows:
        parts = ("weight", "share_ppm", "held_gpu_milli", "used_gpu_milli_ms", "average_gpu_milli")
        sums = {part: sum(getattr(row, part) for row in rows) for part in parts}
        yield rows[0].model_copy(update={**sums, "tenant": "", "others": True, "factor": 0, "place": 0})


def would_borrow(line: PoolLine, job: Job) -> bool:
    """Whether the job would be the next of its queue to borrow: every queue below the root holds its own already."""
    *path, _ = line.tree.path(job.queue)
    return bool(path) and all(line.exceeds_own(queue, job) for queue in path)
