"""
Accounts said apart by brute force: the whole state is walked after every message, whatever changed.

Shares no code with `tessera.engine.accounts`. Free GPUs are taken from the nodes' own books, and what fits nothing that
waits is asked of the engine, pod by pod.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from tessera.domain.devices.resources import WHOLE_GPU, Need, Node
from tessera.domain.entities import Run
from tessera.domain.state import State
from tessera.domain.work.phases import Phase
from tessera.engine.placement.fits import fits
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera_schemas.ledger import LedgerMessage

HOUR, DAY = 3_600_000, 86_400_000
Told = Counter[tuple[str, str]]
"""Thousandths of GPUs by cause and job; "" where the cause has no job. What is kept, and what is free, has one name."""


def messages(stored: list[bytes]) -> Iterator[tuple[LedgerMessage, Shard]]:
    """Each message, and the shard once it is folded."""
    shard = Shard()
    for seq, data in enumerate(stored, start=1):
        entry = decode_entry(Message("", seq, data))
        shard.fold(entry)
        yield entry.message, shard


def seen(state: State, ts: int) -> Told:
    """How all GPUs are had at `ts`, while the state is this one."""
    told: Told = Counter()
    for node in state.nodes.values():
        if node.gone:
            continue
        told["capacity", ""] += node.gpus * WHOLE_GPU
        free = sum(max(0, left) for left in node.gpu_free)
        slots = list(node.gpu_others)
        held = sum(held_here(told, node, run, slots) for run in sorted(state.runs.values(), key=lambda run: run.run_id))
        beyond = 0 if node.gpu_beyond is None else marked_beyond(state, node, len(slots))
        others = (len(slots) - beyond) * WHOLE_GPU + sum(milli for _, milli in node.gpu_parts(node.drawn_by_others))
        told["others", ""] += others
        kept = node.gpus * WHOLE_GPU - free - held - others
        backoff = state.backoffs.get(node.name)
        backed_off = backoff is not None and backoff.until_ts > ts
        if not node.ready or state.drains.get(node.name) is not None or backed_off:
            told["out", ""] += free + kept
        else:
            told["kept", ""] += kept
            told["free", ""] += free
    return +told


def held_here(told: Told, node: Node, run: Run, slots: list[int]) -> int:
    held = 0
    for place in run.places:
        for device in place.devices if place.node == node.name else ():
            milli = place.gpu_milli if device < node.gpus else 0
            if device >= node.gpus and node.gpu_beyond is not None and slots:
                slots.pop(0)
                milli = WHOLE_GPU
            told[stage(run, place.rank), run.job_id] += milli
            held += milli
        drawn = [(each.id, each.capacity) for each in place.drawn if place.node == node.name and not each.admin]
        for _, milli in node.gpu_parts(drawn):
            told[stage(run, place.rank), run.job_id] += milli
            held += milli
    return held


def marked_beyond(state: State, node: Node, slots: int) -> int:
    places = [place for mark in state.earmarks.values() for place in mark.placements if place.node == node.name]
    return min(slots, sum(device >= node.gpus for place in places for device in place.devices))


def stage(run: Run, rank: int) -> str:
    if run.over or run.revoked is not None:
        return "stopping"
    if not run.started:
        return "starting"
    surplus = [pod for pod in run.extra if pod.placement.rank == rank]
    if any(pod.leaving for pod in surplus):
        return "stopping"
    if any(not pod.uid for pod in surplus):
        return "starting"
    return "unused" if run.idle_ts else "used"


def in_line(state: State, pool: str) -> list[Need]:
    """What pods of jobs that wait in the pool ask for, as far as they ask for GPUs."""
    lines = (state.index.waiting.get(queue, ()) for queue in state.tree.queues_of.get(pool, ()))
    jobs = [state.jobs.get(place[-1]) for line in lines for place in line]
    assert all(job is not None and job.phase is Phase.QUEUED for job in jobs)
    return [role.need for job in jobs if job for role in job.roles if role.need.total_gpu_milli]


def free_nodes(state: State) -> list[Node]:
    closed = {name for name, _ in state.drains.items()}
    closed |= {name for name, backoff in state.backoffs.items() if backoff.until_ts > state.ts}
    return [node for node in state.nodes.values() if node.ready and not node.gone and node.name not in closed]


def fits_nothing(state: State, pool: str) -> int:
    """Free thousandths of GPUs on nodes of the pool on which none of the pods in line has room."""
    needs = in_line(state, pool)
    nodes = [node for node in free_nodes(state) if node.pool == pool]
    full = [node for node in nodes if all(fits(need, node) is not None for need in needs)]
    return sum(max(0, left) for node in full for left in node.gpu_free)


def by_period(stored: list[bytes], length: int) -> dict[int, Told]:
    """Thousandths of GPUs times milliseconds of the whole ledger, by when the hour or day begins."""
    told: dict[int, Told] = defaultdict(Counter)
    shard, since = Shard(), 0
    for seq, data in enumerate(stored, start=1):
        entry = decode_entry(Message("", seq, data))
        state, ts = shard.state, entry.message.ts
        ends = [ts, *(backoff.until_ts for backoff in state.backoffs.values() if since < backoff.until_ts < ts)]
        ends += range(since - since % HOUR + HOUR, ts, HOUR) if since else ()
        for end in sorted(set(ends)) if since else ():
            now, begins = seen(state, since), since - since % length
            for name, milli in now.items():
                told[begins][name] += milli * (end - since)
            since = end
        since = ts
        shard.fold(entry)
    return {begins: +names for begins, names in told.items() if +names}
