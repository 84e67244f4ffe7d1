"""The demo without its servers: what a subscriber's picture shows, what the ledger's numbers are, what the end says."""

from collections import Counter
from random import Random
from typing import Any

from rich.text import Text

from tessera.client.ledger.replay import ReplayReport
from tessera.domain.state import State
from tessera.testkit.checker import Report, Violation
from tessera_local.demo.judging import Judgement
from tessera_local.demo.measures import RunMeasures
from tessera_local.demo.picture import RUNNING, SUCCEEDED, WAITING, NodeShape, Picture
from tessera_local.demo.plan import DemoPlan
from tessera_local.demo.screen import occupancy
from tessera_local.demo.summary import DemoOutcome, Kill, summary
from tessera_local.production_mix import FIGURES, read_mix
from tessera_schemas.events import CloudEvent
from tessera_schemas.ledger import GENESIS, Allocated, EpochOpened, LedgerMessage
from tessera_schemas.work.placement import Placement

JOB = "a" * 20
NODES = (NodeShape("g2-00", "G2", 8), NodeShape("t4-01", "T4", 2))


def event(kind: str, n: int = 1, **data: Any) -> CloudEvent:
    return CloudEvent(
        specversion="1.0",
        id=f"{n}.0",
        source="urn:tessera:main",
        type=f"io.tessera.job.{kind}.v1",
        subject=JOB,
        time="2026-01-01T00:00:00.000Z",
        dataschema="",
        tenant="demo",
        sequence=f"{n:016}",
        data={"job_id": JOB, "name": "job-000", **data},
    )


def placed(node: str, devices: tuple[int, ...], gpu_milli: int) -> dict[str, Any]:
    return {"rank": 0, "role": "worker", "node": node, "devices": list(devices), "gpu_milli": gpu_milli}


def message(n: int, ts: int, *records: Any) -> LedgerMessage:
    return LedgerMessage(v=1, n=n, prev=GENESIS, epoch=1, tx="t" * 8, ts=ts, engine="e", policy=0, records=records)


def allocated() -> Allocated:
    return Allocated(
        kind="allocated", job_id=JOB, attempt=1, deadline=1, placements=(Placement(0, "worker", "g2-00", (0,), 1000),)
    )


def outcome(**changes: Any) -> DemoOutcome:
    measures = RunMeasures([1000, 1500, 4000], {JOB: 1000}, 3000, 9_000_000, 10_000_000)
    made: dict[str, Any] = {
        "jobs": 3,
        "gangs": [2, 16],
        "phases": {"succeeded": 2, "failed": 0, "refused": 1},
        "reasons": Counter({"Inadmissible: " + "the largest suitable node is too small " * 9: 1}),
        "begun_ms": {JOB: 0},
        "judgement": Judgement(measures, Report(), ReplayReport(state_hash="0" * 64)),
        "kill": Kill("scheduler", 7.0, 2.7, 120, 20),
    }
    return DemoOutcome(**{**made, **changes})


def test_the_picture_follows_a_job_from_its_admission_to_the_release_of_its_gpus() -> None:
    picture = Picture(NODES, lambda: 0.0)
    picture.take(event("admitted"))
    assert picture.counts == {WAITING: 1}
    picture.take(event("allocated", attempt=1, placements=[placed("g2-00", (0, 1), 1000)]))
    picture.take(event("running", attempt=1))
    assert (picture.counts, picture.gpus_taken_percent) == ({RUNNING: 1}, 20)
    picture.take(event("succeeded", attempt=1))
    assert picture.ended(JOB)
    assert picture.gpus_taken_percent == 20  # until the release says that they are free
    picture.take(event("released", attempt=1))
    assert (picture.counts, picture.gpus_taken_percent) == ({SUCCEEDED: 1}, 0)


def test_the_grid_shows_whole_shared_and_free_gpus_node_by_node() -> None:
    picture = Picture(NODES, lambda: 0.0)
    picture.take(event("allocated", attempt=1, placements=[placed("g2-00", (0, 1), 1000), placed("t4-01", (1,), 470)]))
    assert [line.plain.rstrip() for line in occupancy(picture, 76)] == ["G2      ██······", "T4      ·▄"]


def test_no_line_of_the_grid_is_wider_than_the_screen() -> None:
    many = [NodeShape(f"n-{index}", "G2", Random(index).choice((1, 2, 8))) for index in range(60)]
    lines: list[Text] = list(occupancy(Picture(many, lambda: 0.0), 76))
    assert max(line.cell_len for line in lines) <= 77  # the last sign is a space
    assert sum(line.plain.count("·") for line in lines) == sum(node.gpus for node in many)


def test_the_best_second_is_the_most_allocations_within_any_second() -> None:
    assert RunMeasures(allocated_ts=[0, 900, 1000, 1800, 5000]).best_second() == 3
    assert RunMeasures().best_second() == 0


def test_opening_an_epoch_is_no_decision_about_work() -> None:
    measures, state = RunMeasures(), State()
    measures.take(state, message(5, 1000, EpochOpened(kind="epoch_opened", epoch=2, holder="s")))
    measures.take(state, message(6, 1400, allocated()))
    assert measures.decision_after(4) == 1400
    assert measures.decision_after(6) is None


def test_the_summary_fits_80_columns_and_has_every_number() -> None:
    lines = summary(outcome())
    assert max(len(line) for line in lines) <= 80
    text = " ".join(" ".join(lines).split())
    for said in ("3 submitted", "0 lost", "90 % allocated", "p50 1.00 s", "next decision after 2.7 s", "ok, all hold"):
        assert said in text


def test_a_violation_a_finding_of_the_replay_or_a_lost_job_is_not_well() -> None:
    measures = RunMeasures()
    violated = Judgement(measures, Report([Violation("I1", 7, "two on a GPU")]), ReplayReport())
    differs = Judgement(measures, Report(), ReplayReport(wrong=1, findings=["message 7: differs"]))
    assert outcome().ok
    assert not outcome(judgement=violated).ok
    assert not outcome(judgement=differs).ok
    assert not outcome(phases={"succeeded": 2}).ok
    assert any("two on a GPU" in line for line in summary(outcome(judgement=violated)))


def test_the_same_seed_plans_the_same_demo() -> None:
    mix = read_mix(*FIGURES, "figures")
    assert DemoPlan.draw(mix, 50, 10, 1, None) == DemoPlan.draw(mix, 50, 10, 1, None)
