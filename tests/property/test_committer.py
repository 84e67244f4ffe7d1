"""
Whatever is said to the committer, in whatever order: it decides, never contradicts itself, and never gives twice.

`Happenings` makes the life of a shard from a seed; hypothesis picks the seeds.
"""

from collections import defaultdict
from collections.abc import Callable
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.client.ledger.replay import verify
from tessera.domain.devices.empty_nodes import empty_node
from tessera.domain.devices.resources import WHOLE_GPU, Amount, Node
from tessera.domain.folding.fold import apply_record, take_in
from tessera.domain.state import TABLES, State
from tessera.domain.storing.snapshot import dump, load
from tessera.domain.storing.statehash import StateHash
from tessera.domain.work.phases import TERMINAL
from tessera.engine.placement.relations import broken
from tessera.kernel.ledger.shard import Shard, decode_entry
from tessera.kernel.ports import Message
from tessera_schemas.facts import AnyFact
from tessera_schemas.ledger import LedgerMessage
from tessera_schemas.subjects import MESSAGE_BYTES_MAX
from tests.builders import admitted, config_body, config_proposed, job_spec, node_seen, queue, role
from tests.ledgers import Committed
from tests.property.happenings import Happenings
from tests.random_ledger import Life

SEEDS = st.integers(0, 2**32 - 1)
MESSAGES = 40
SCALARS = ("n", "ts", "epoch", "format", "facts_upto", "last_number", "config", "sizes", "recount_ts")


def lived(seed: int, messages: int = MESSAGES) -> Happenings:
    life = Happenings(seed)
    for _ in range(messages):
        life.go_on()
    return life


def held_on_nodes(state: State) -> dict[str, tuple[int, int, int, dict[int, int]]]:
    """CPU, memory, pods and thousandths per device that runs and earmarks hold, counted from themselves."""
    cpu: dict[str, int] = defaultdict(int)
    memory: dict[str, int] = defaultdict(int)
    pods: dict[str, int] = defaultdict(int)
    gpu: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for holder in [*state.runs.values(), *state.earmarks.values()]:
        needs = {each.name: each.need for each in holder.roles}
        for place in holder.placements:
            need = needs[place.role]
            cpu[place.node] += need.cpu_milli
            memory[place.node] += need.memory_bytes
            pods[place.node] += 1
            for device in place.devices:
                gpu[place.node][device] += place.gpu_milli
    return {name: (cpu[name], memory[name], pods[name], dict(gpu[name])) for name in pods}


def count_others(node: Node) -> int:
    """GPUs that others hold, and those that are held in slots which the node has lost: of the ones that are there."""
    return node.others.gpus + max(0, node.gpu_beyond or 0)


def check_books(state: State) -> None:
    """Used by runs and by others + free = total on every node, and the tallies are what the jobs and runs add up to."""
    held = held_on_nodes(state)
    assert set(held) <= {node.name for node in state.nodes.values()}
    for node in state.nodes.values():
        cpu, memory, pods, gpu = held.get(node.name, (0, 0, 0, {}))
        assert node.cpu_free + cpu + node.others.cpu_milli == node.cpu_milli
        assert node.memory_free + memory + node.others.memory_bytes == node.memory_bytes
        assert node.pods_free + pods + node.others.pods == node.pods
        unheld = [WHOLE_GPU - gpu.get(device, 0) for device in range(node.gpus)]
        theirs = [device for device, left in enumerate(unheld) if left == WHOLE_GPU]
        theirs = theirs[max(0, len(theirs) - count_others(node)) :]
        assert node.gpu_others == tuple(theirs)
        assert node.gpu_free == tuple(0 if device in theirs else left for device, left in enumerate(unheld))
        assert all(taken <= WHOLE_GPU for taken in gpu.values()), f"a device of {node.name} is given twice"
        assert not node.gone or pods
    queues: dict[str, Amount] = defaultdict(Amount)
    for run in state.runs.values():
        queues[run.queue] = queues[run.queue].plus(run.amount)
    assert {use.name: use.amount for use in state.queue_use.values() if use.jobs} == dict(queues)
    tenants: dict[str, int] = defaultdict(int)
    for job in state.jobs.values():
        tenants[job.tenant] += 1
        assert job.phase not in TERMINAL
        assert (state.runs.get(job.run_id) is not None) == (job.phase.value not in ("queued",))
        assert state.ended.get(job.job_id) is None
    assert {use.name: use.jobs for use in state.tenant_use.values() if use.jobs} == dict(tenants)


def check_allocations(before: State, after_stored: bytes) -> None:
    """No decision raises use above a quota or above what is free, each seen at its own moment."""
    message = decode_entry(Message("", before.n + 1, after_stored)).message
    trial = before.overlay()
    take_in(trial, message.n, message.ts, message.facts_upto, message.orders)
    for record in message.records:
        apply_record(trial, record, message.facts)
        if record.kind != "allocated":
            continue
        run = trial.runs.get(f"{record.job_id}-{record.attempt}")
        assert run is not None
        for quota in trial.tree.queues[run.queue].quotas:
            assert getattr(trial.held_by_queue(run.queue), quota.resource) <= quota.nominal
        for place in record.placements:
            node = trial.nodes.get(place.node)
            assert node is not None
            assert node.ready
            assert min(node.cpu_free, node.memory_free, node.pods_free, *node.gpu_free, 0) >= 0
            assert not place.devices or place.mig or len(node.gpu_others) == count_others(node)
            assert min(free for _, free in node.devices_free) >= 0
            size = place.mig[1] if place.mig else 0
            assert all(node.mig_taken[device][at : at + size] == (1,) * size for device, at in place.instances)
        assert not list(broken(run.roles, record.placements, dict(trial.nodes.items())))


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_the_books_balance_after_every_message_whatever_was_said(seed: int) -> None:
    life = Happenings(seed)
    for _ in range(MESSAGES):
        before = load(dump(life.state))
        life.go_on()
        check_allocations(before, life.ledger.stored[-1])
        check_books(life.state)
        assert len(life.ledger.stored[-1]) <= MESSAGE_BYTES_MAX


def fold_and_trial(ledger: Committed, go_on: Callable[[], LedgerMessage]) -> tuple[State, State]:
    """The state after one more message as everybody folds it, and as the committer tried its records on an overlay."""
    trial = load(dump(ledger.state)).overlay()
    message = go_on()
    take_in(trial, message.n, message.ts, message.facts_upto, message.orders)
    for record in message.records:
        apply_record(trial, record, message.facts)
    return ledger.state, trial


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.booleans())
def test_the_fold_of_what_was_decided_is_the_state_on_which_it_was_decided(seed: int, all_kinds: bool) -> None:
    life = Life(Random(seed), 1_760_000_000_000) if all_kinds else Happenings(seed)
    for _ in range(MESSAGES):
        folded, trial = fold_and_trial(life.ledger, life.go_on)
        for name in TABLES:
            assert dict(getattr(trial, name).items()) == dict(getattr(folded, name).items())
        for name in SCALARS:
            assert getattr(trial, name) == getattr(folded, name)


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_a_replay_recomputes_every_record_and_ends_with_the_same_hash(seed: int) -> None:
    life = lived(seed)
    replayed = Shard()
    for n, stored in enumerate(life.ledger.stored, start=1):
        replayed.fold(decode_entry(Message("", n, stored)))
    assert replayed.hasher.of(replayed.state) == StateHash().of(load(dump(life.state)))
    report = verify(life.ledger.stored)
    assert [text for text in report.findings if "the order of pool" not in text] == []


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.integers(1, MESSAGES))
def test_a_committer_restored_anywhere_goes_on_with_the_same_bytes(seed: int, at: int) -> None:
    whole, restored = Happenings(seed), Happenings(seed)
    for number in range(MESSAGES):
        if number == at:
            restored.ledger.shard = Shard(load(dump(restored.state)))
        whole.go_on()
        restored.go_on()
    assert whole.ledger.stored == restored.ledger.stored


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_the_same_life_twice_is_the_same_ledger(seed: int) -> None:
    assert lived(seed).ledger.stored == lived(seed).ledger.stored


SHAPES = st.lists(st.tuples(st.sampled_from((1, 2, 4)), st.sampled_from((1, 2, 3))), min_size=1, max_size=6)


@settings(max_examples=50, deadline=None)
@given(SHAPES, st.randoms(use_true_random=False))
def test_the_order_in_which_independent_facts_come_does_not_change_who_is_placed(
    shapes: list[tuple[int, int]], random: Random
) -> None:
    """Nodes, bindings and ends of other jobs, said in any order before the same line is served."""

    def placed(facts: list[AnyFact]) -> set[tuple[str, str, tuple[int, ...]]]:
        ledger = Committed()
        ledger.commit(holder="scheduler-1")
        ledger.commit(config_proposed(config_body(queue(gpu_milli=9000))))
        jobs = [job_spec(role(replicas=replicas, gpus=gpus)) for replicas, gpus in shapes]
        ledger.commit(*(admitted(f"k{number}", spec) for number, spec in enumerate(jobs)))
        ledger.commit(*facts, orders=(ledger.line(),))
        return {
            (run.run_id, place.node, place.devices) for run in ledger.state.runs.values() for place in run.placements
        }

    facts: list[AnyFact] = [
        node_seen(f"node-{name}", gpus=gpus) for name, gpus in zip("abcd", (2, 4, 4, 8), strict=True)
    ]
    facts.append(admitted("late", job_spec(role(gpus=1))))
    shuffled = list(facts)
    random.shuffle(shuffled)
    assert placed(facts) == placed(shuffled)


def test_a_life_reaches_what_it_is_meant_to_reach() -> None:
    """Else the properties above would hold for lack of anything happening."""
    seen: set[str] = set()
    codes: set[str] = set()
    fields, lies = set[str](), set[str]()
    for seed in range(30):
        for n, stored in enumerate(lived(seed).ledger.stored, start=1):
            for record in decode_entry(Message("", n, stored)).message.records:
                seen.add(record.kind)
                reason = getattr(record, "reason", None)
                codes |= {reason.code.value} if reason is not None else set()
                fields.add(reason.field.rpartition(".")[2] if reason is not None else "")
                lies |= {"mig"} if record.kind == "allocated" and record.placements[0].mig else set()
    assert seen >= {
        "allocated", "bound", "checkpoint", "config_refused", "config_set", "finished", "job_queued", "job_turned_away",
        "node_changed", "delayed", "permitted", "released", "requeued", "revoked", "started", "waiting",
    }  # fmt: skip
    assert codes >= {
        "NoFit", "NoNodes", "NoSuchQueue", "WaitingForQuota", "StartTimeout", "BindRefused",
        "Cancelled", "PodFailed", "ConfigConflict",
    }  # fmt: skip
    assert fields >= {"topology", "spread"}
    assert lies == {"mig"}


def test_an_emptied_node_is_what_the_cluster_said_it_is() -> None:
    node = empty_node(node_seen(gpus=3))
    assert (node.gpu_free, node.cpu_free, node.pods_free) == ((WHOLE_GPU,) * 3, node.cpu_milli, node.pods)
