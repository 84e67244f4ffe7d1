"""A node that offers fewer GPUs than its runs hold: what is left is counted, and comes back as they go."""

from tessera_schemas.facts import CancelRequested, RunAbsent
from tests.builders import admitted, job_spec, node_seen, role
from tests.ledgers import Committed


def four_runs() -> tuple[Committed, list[str]]:
    """A node of eight GPUs, all held by four jobs of two, in the order of their slots."""
    ledger = Committed().begin(node_seen("node-a"))
    jobs = [admitted(f"k{n}", job_spec(role(gpus=2))) for n in range(4)]
    ledger.commit(*jobs)
    ledger.commit(orders=(ledger.line(),))
    runs = sorted(ledger.state.runs.values(), key=lambda run: run.placements[0].devices)
    return ledger, [run.job_id for run in runs]


def end(ledger: Committed, job_id: str) -> None:
    ledger.commit(CancelRequested(kind="cancel_requested", job_id=job_id, now=True))
    ledger.commit(RunAbsent(kind="run_absent", run_id=f"{job_id}-1"))


def free(ledger: Committed) -> int:
    node = ledger.state.nodes.get("node-a")
    assert node is not None
    return node.gpu_free.count(1000)


def test_who_holds_a_slot_that_is_gone_has_one_of_those_that_are_left() -> None:
    ledger, jobs = four_runs()
    end(ledger, jobs[0])
    ledger.commit(node_seen("node-a", gpus=7))
    assert free(ledger) == 1  # six of seven are held, although only five of the seven slots are
    end(ledger, jobs[3])  # the one that stood on slot 7
    assert free(ledger) == 3
    ledger.commit(node_seen("node-a", gpus=8))
    assert free(ledger) == 4


def test_a_node_without_devices_has_nothing_to_give_and_has_all_again_when_they_are_back() -> None:
    ledger, jobs = four_runs()
    end(ledger, jobs[0])
    ledger.commit(node_seen("node-a", gpus=0))
    assert free(ledger) == 0
    end(ledger, jobs[1])
    ledger.commit(node_seen("node-a", gpus=8))
    assert free(ledger) == 4


def test_more_held_than_is_there_is_nothing_free_until_enough_have_left() -> None:
    ledger, jobs = four_runs()
    ledger.commit(node_seen("node-a", gpus=5))
    assert free(ledger) == 0
    end(ledger, jobs[0])
    assert free(ledger) == 0  # six are held
    end(ledger, jobs[1])
    assert free(ledger) == 1


def test_a_node_knows_since_when_it_is_silent_or_cordoned() -> None:
    ledger = Committed().begin(node_seen("node-a"))

    def away() -> int:
        node = ledger.state.nodes.get("node-a")
        return -1 if node is None else node.away_ts

    assert away() == 0
    ledger.commit(node_seen("node-a", ready=False))
    since = ledger.ts
    assert away() == since
    ledger.commit(node_seen("node-a", ready=False, cpu_milli=1000))
    assert away() == since
    ledger.commit(node_seen("node-a", ready=False, cordoned=True))
    assert away() == ledger.ts > since
    ledger.commit(node_seen("node-a"))
    assert away() == 0
