"""Fields of jobs as squeue, sacct and scontrol print them."""

from datetime import datetime
from typing import Any

import pytest
from typer.testing import CliRunner

from tessera.client.cli import app
from tessera.client.commands.jobs import events
from tessera.client.commands.shard.views import job_facts
from tessera.client.commands.slurm_words.accounting import ACCOUNTED, node_lines, partition_lines
from tessera.client.commands.slurm_words.squeue import (
    NODE_LETTERS,
    partitions,
    queue_columns,
    start_columns,
    tasks_to_come,
)
from tessera.client.outcomes import Failure
from tessera.client.slurm import values
from tessera.client.slurm.listing import fields, queue_fields
from tessera.client.slurm.listing.job_record import job_lines
from tessera.client.views.rendering import COLUMNS, Output, show, table
from tessera_schemas.events import CloudEvent
from tessera_schemas.reasons import PublicReason
from tessera_schemas.views import ArrayView, JobView, LineStart, NodeView, QueueView
from tessera_schemas.work.arrays import Dependency
from tessera_schemas.work.placement import DrawnDevice, Placement

NOW = 1_760_000_000_000
ARRAY, TASK = "a" * 20, "a" * 16 + "222b"


def view(phase: str = "running", **more: Any) -> JobView:
    base = {"job_id": ARRAY, "tenant": "lab", "queue": "research", "name": "train", "key": "k", "priority": 0}
    return JobView.model_validate(
        {**base, "phase": phase, "attempt": 1, "pods": 2, "gpu_milli": 8000, "submitted_ts": NOW - 10_000, **more}
    )


def test_arrays_and_tasks_are_called_as_slurm_calls_them() -> None:
    assert fields.job_id_of(view(job_id=TASK, task_of=ARRAY, task=7)) == f"{ARRAY}_7"
    left = ArrayView(tasks="0-99", count=100, limit=4, left="8-99")
    assert fields.job_id_of(view("queued", array=left)) == f"{ARRAY}_[8-99%4]"
    assert fields.job_id_of(view(number=12)) == "12"
    assert fields.job_id_of(view("queued", array=left, number=12)) == "12_[8-99%4]"
    task = view(job_id=TASK, task_of=ARRAY, task=7, number=20, array_number=12)
    assert [fields.job_id_of(task), fields.raw_id_of(task), fields.array_of(task)] == ["12_7", "20", "12"]
    for name in ("12_7", "20", "12", f"{ARRAY}_7", ARRAY, TASK):
        assert fields.is_named(task, {name}), name
    long = ArrayView(tasks="0,2,5,9,11,20-30", count=16, left="2,5,9,11,20-30")
    assert fields.job_id_of(view("queued", array=long)) == f"{ARRAY}_[2,5,9,11,20-...]"


def test_an_array_that_waits_shows_what_one_of_its_tasks_asks_for() -> None:
    asks = {"task_cpu_milli": 4000, "task_memory_bytes": 64 << 30, "task_gpu_milli": 1000}
    left = ArrayView(tasks="0-5", count=6, limit=2, left="2-5", **asks)
    array = view("queued", pods=1, gpu_milli=0, number=12, array=left)
    shown = queue_fields.rows_as("%i %b %m %c %C", NOW)
    assert shown(array) == "12_[2-5%2] gres/gpu:1 64G 4 4"
    assert shown(tasks_to_come(array)[0]) == "12_2 gres/gpu:1 64G 4 4"
    assert fields.FIELDS["ReqTRES"](array, NOW) == "cpu=4,mem=64G,node=1,gres/gpu=1"
    assert "TRES=cpu=4,mem=64G,node=1,gres/gpu=1" in job_lines(array, NOW)
    assert fields.FIELDS["GPUs"](array, NOW) == "1"


@pytest.mark.parametrize("wanted", [ARRAY, f"{ARRAY}_7", TASK, "train"])
def test_a_task_is_meant_by_its_own_name_and_by_its_arrays(wanted: str) -> None:
    assert fields.is_named(view(job_id=TASK, task_of=ARRAY, task=7), {wanted})
    assert not fields.is_named(view(job_id="b" * 20, name="other"), {wanted})


def test_sacct_tells_state_exit_code_time_and_gpu_hours() -> None:
    failed = view("failed", started_ts=NOW - 9_000_000, ended_ts=NOW - 1_800_000, exit_code=137)
    late = view("failed", reason=PublicReason(code="TimeLimit"), exit_code=3)
    columns = [fields.column(name, NOW) for name in ACCOUNTED.split(",")]
    title, first, second = table(columns, [failed, late], wide=True)
    assert title.split() == ACCOUNTED.split(",")
    assert first.split()[4:] == ["8", "FAILED", "0:9", "2:00:00", "16.000"]
    assert second.split()[4:] == ["8", "TIMEOUT", "3:0", "0:00", "0.000"]


@pytest.mark.parametrize(
    ("held", "said"),
    [(2_988_000_000, "0.830"), (30_000_000, "0.008"), (1, "0.001"), (203_000_000, "0.056"), (0, "0.000")],
)
def test_gpu_hours_are_those_of_all_runs_and_are_rounded(held: int, said: str) -> None:
    ended = view("succeeded", started_ts=NOW - 9_000, ended_ts=NOW, gpu_milli=0, gpu_milli_ms=held, attempt=3)
    assert fields.gpu_hours(ended, NOW + 99_000) == said


def test_get_and_sacct_show_what_a_job_costs_until_now_where_there_are_prices() -> None:
    run = {"gpu_counted_ts": NOW, "cost_rates": [(NOW, 2_000_000 * 8000), (NOW + 3_600_000, 1_000_000 * 8000)]}
    job, free = view(currency="EUR", cost_micros=250_000, **run), view()
    assert fields.FIELDS["Cost"](job, NOW) == "0.25 EUR"
    assert ("cost", "20.25 EUR") in job_facts(job, NOW + 5_400_000)
    assert (fields.FIELDS["Cost"](free, NOW), "cost" in dict(job_facts(free, NOW))) == ("", False)


def test_get_and_slurms_words_show_the_project() -> None:
    named, none = view(project="vlm"), view()
    assert [fields.FIELDS["WCKey"](job, NOW) for job in (named, none)] == ["vlm", ""]
    assert [queue_fields.rows_as("%w", NOW)(job) for job in (named, none)] == ["vlm", "(null)"]
    assert " WCKey=vlm\n" in job_lines(named, NOW)
    assert "WCKey" not in job_lines(none, NOW)
    assert ("project", "vlm") in job_facts(named, NOW)
    assert "project" not in dict(job_facts(none, NOW))


def test_a_job_with_nodes_to_itself_shares_none() -> None:
    told = [queue_fields.rows_as("%h", NOW)(job) for job in (view(exclusive=True), view())]
    assert told == ["NO", "OK"]
    assert queue_fields.long_lines("oversubscribe:4", [view(exclusive=True)], NOW)[1] == "NO  "


def test_a_run_counts_at_the_size_that_it_has_now() -> None:
    place = [Placement(rank=rank, role="w", node=f"n{rank}", gpu_milli=1000) for rank in range(3)]
    grown = view(started_ts=1, gpu_milli=0, pods=1, placements=place, held_pods=3, held_gpu_milli=3000)
    names = ("GPUs", "NNodes", "NTasks", "AllocTRES", "ReqTRES")
    said = [fields.FIELDS[name](grown, NOW) for name in names]
    assert said == ["3", "3", "3", "cpu=1,node=3,gres/gpu=3", "cpu=1,node=1"]
    running = grown.model_copy(update={"gpu_milli_ms": 1_000_000, "gpu_counted_ts": NOW - 3_600_000})
    assert fields.gpu_hours(running, NOW) == "3.000"
    assert fields.FIELDS["Restarts"](view(attempt=3, evictions=1), NOW) == "2"


def test_a_pattern_of_squeue_is_filled_in() -> None:
    placed = (Placement(0, "worker", "gpu-1", (0,), 1000),)
    line = queue_fields.rows_as("%.5D|%8T|%j %R", NOW)
    assert line(view(placements=placed)) == "    1|RUNNING |train gpu-1"
    assert queue_fields.heading("%.5D|%8T|%j") == "NODES|STATE   |NAME"
    assert (
        queue_fields.rows_as("%i %E", NOW)(view("queued", after=(Dependency(condition="singleton"),)))
        == f"{ARRAY} singleton"
    )


def test_a_field_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(Failure, match="there are JobID"):
        fields.column("Colour", NOW)
    with pytest.raises(Failure, match="no field %X"):
        queue_fields.line_of("%i %X", {"i": str})


def test_scontrol_shows_a_job_and_a_node_in_full() -> None:
    lines = job_lines(view("queued", reason=PublicReason(code="DependencyNotMet")), NOW)
    assert lines.startswith(f"JobId={ARRAY} JobName=train\n   UserId=lab(")
    assert "\n   JobState=PENDING Reason=Dependency " in lines
    assert "\n   SubmitTime=2025-10-09T" in lines
    assert " TimeLimit=UNLIMITED " in lines
    node = NodeView(name="gpu-1", pool="default", ready=True, gpus=8, gpu_free=(1000,) * 6 + (0, 0), drain_why="fans")
    assert "Gres=gpu:8 GresUsed=gpu:2\n   Reason=fans" in node_lines(node)


def test_get_shows_the_tasks_of_an_array_and_what_a_job_waits_for() -> None:
    array = ArrayView(tasks="0-9", count=10, running=2, succeeded=3)
    facts = dict(job_facts(view("queued", array=array, after=(Dependency(condition="afterok", job=TASK),)), NOW))
    assert facts["tasks"] == "0-9 (10 in all, 2 running, 5 waiting, 3 succeeded)"
    assert facts["waits for"] == f"afterok of {TASK}"
    assert dict(job_facts(view(job_id=TASK, task_of=ARRAY, task=7), NOW))["task"] == f"7 of {ARRAY}"


def test_jobs_are_chosen_by_all_that_is_asked() -> None:
    jobs = [view(), view("queued", job_id="b" * 20, queue="prod"), view("failed", job_id="c" * 20, name="other")]

    def chosen(**asked: str) -> str:
        return "".join(job.job_id[0] for job in fields.select(jobs, **asked))

    assert chosen() == "abc"
    assert chosen(states="pd,FAILED") == "bc"
    assert chosen(states="all") == "abc"
    assert chosen(states="TO,NF,SUSPENDED") == ""
    assert chosen(name="train", queue="prod") == "b"
    assert chosen(named=f"{'a' * 20},other") == "ac"
    assert chosen(user="nobody") == ""
    jobs.append(view("failed", job_id="d" * 20, reason=PublicReason(code="TimeLimit")))
    assert chosen(states="TO") == "d"
    with pytest.raises(Failure, match="RUNING: there is no such state; there are ALL, CA, CANCELLED"):
        chosen(states="PD,RUNING")


@pytest.mark.parametrize(
    ("text", "began"),
    [
        ("2h", "2030-03-04T10:00:00+00:00"),
        ("now-2days", "2030-03-02T12:00:00+00:00"),
        ("today", "2030-03-04T00:00:00+00:00"),
        ("13:00", "2030-03-03T13:00:00+00:00"),
        ("2030-03-04T23:00+00:00", "2030-03-04T23:00:00+00:00"),
        ("2030-02-28T08:00+00:00", "2030-02-28T08:00:00+00:00"),
    ],
)
def test_sacct_reads_since_when_as_slurm_does(text: str, began: str) -> None:
    noon = datetime.fromisoformat("2030-03-04T12:00:00+00:00")
    since = values.since_ms(values.Said("sacct", "since", text), noon)
    assert since == datetime.fromisoformat(began).timestamp() * 1000


@pytest.mark.parametrize("words", [("sacct", "-S", "yesterday"), ("logs", "train", "--since", "soon")], ids=" ".join)
def test_a_time_that_cannot_be_meant_is_a_usage_error(words: tuple[str, ...]) -> None:
    said = CliRunner().invoke(app, words)
    assert (said.exit_code, "2h" in said.output) == (2, True), said.output


def test_a_table_can_do_without_its_titles(capsys: pytest.CaptureFixture[str]) -> None:
    show(Output.TABLE, [fields.column("JobName", NOW)], [view()], None, titles=False)
    assert capsys.readouterr().out == "train\n"


def test_fields_have_widths_and_other_names_and_those_that_nobody_measures_are_empty() -> None:
    job = view(started_ts=NOW - 61_000)
    assert fields.column("JobName%3", NOW).value(job) == "tra"
    assert fields.column("JobName%-8", NOW).value(job) == "train   "
    assert fields.column("jobname%8", NOW).value(job) == "   train"
    assert fields.column("MaxRSS", NOW).value(job) == ""
    with pytest.raises(Failure, match="Nonsense: there is no such field"):
        fields.column("Nonsense", NOW)


def test_lines_of_fixed_widths_are_those_of_squeue_with_a_large_o() -> None:
    job = view(started_ts=NOW - 61_000)
    title, line = queue_fields.long_lines("JobID:24,Name:6,State:.9,TimeUsed", [job], NOW)
    assert title == f"{'JOBID':<24}{'NAME':<6}{'STATE':>9}{'TIME':<20}"
    assert line == f"{'a' * 20:<24}{'train':<6}{'RUNNING':>9}{'1:01':<20}"
    assert queue_fields.long_lines("JobID", [job], NOW, titles=False) == ["a" * 20]


def test_jobs_are_chosen_by_lists_of_queues_names_and_nodes() -> None:
    placed = (Placement(0, "worker", "gpu-1", (0,), 1000),)
    jobs = [view(), view(name="b", queue="prod"), view(name="c", placements=placed)]
    assert [job.name for job in fields.select(jobs, queue="prod,dev")] == ["b"]
    assert [job.name for job in fields.select(jobs, name="train,c")] == ["train", "c"]
    assert [job.name for job in fields.select(jobs, nodes="gpu-1,gpu-2")] == ["c"]


def test_on_a_terminal_of_80_columns_no_time_and_no_number_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = {"name": "n" * 40, "queue": "q" * 40, "tenant": "t" * 40, "user": "u" * 40, "number": 123456}
    job = view("cancelled", started_ts=NOW - 900_000_000, ended_ts=NOW, gpu_milli_ms=10**13, **long)
    for columns, gap in (
        ([fields.column(name, NOW) for name in ACCOUNTED.split(",")], 2),
        (queue_columns(NOW, long=True), 1),
        (queue_columns(NOW), 1),
    ):
        lines = table(columns, [job, job.model_copy(update={"number": 0})], gap=gap)
        assert max(map(len, lines)) <= COLUMNS
        assert all("10-10:00:00" in line for line in lines[1:])


def test_events_show_their_seconds_on_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    told = {"job_id": ARRAY, "name": "n" * 40, "reason": {"code": "Preempted"}}
    kind = "io.tessera.job.checkpointed.v1"
    event = CloudEvent.model_construct(id="9" * 16, time="2026-11-27T02:03:04Z", type=kind, data=told)
    title, line = table(events.event_columns(), [event])
    assert max(len(title), len(line)) <= COLUMNS
    assert "02:03:04" in line
    assert ARRAY in line


def test_squeue_start_has_slurms_columns_and_says_what_is_not_known() -> None:
    reason = PublicReason(code="Reserved")
    known = view("queued", reason=reason, number=7, user="ada")
    unknown = view("queued", job_id="b" * 20, reason=reason, number=8, user="ada")
    start = LineStart(at_ts=NOW, rests_on=("time_limits",), nodes=("gpu-1", "gpu-2"))
    title, first, second = table(start_columns({ARRAY: start}, {}, NOW), [known, unknown], gap=1, wide=True)
    assert " ".join(title.split()) == "JOBID PARTITION NAME USER ST START_TIME NODES SCHEDNODES NODELIST(REASON)"
    at = fields.time_of(NOW)
    assert first.split() == ["7", "research", "train", "ada", "PD", at, "2", "gpu-[1-2]", "(Resources)"]
    assert second.split()[5:] == ["N/A", "2", "(null)", "(Resources)"]


def test_squeue_start_refuses_a_form_that_has_no_place_for_starts() -> None:
    found = CliRunner().invoke(app, ["squeue", "--start", "--json"])
    assert found.exit_code == 2
    assert "squeue --start: a table with columns of its own" in found.output


def with_devices(phase: str = "running", drawn: bool = True) -> JobView:
    """A job of two pods, each with a GPU of a driver and two cards of a class that the configuration calls `nic`."""
    devices = (
        DrawnDevice("gpu", "gpu", "gpu.example.com", "gpu-1", "gpu-0"),
        DrawnDevice("net", "card", "nic.example.com", "gpu-1", "nic-0"),
        DrawnDevice("net", "card", "nic.example.com", "gpu-1", "nic-1"),
        DrawnDevice("net", "card", "nic.example.com", "gpu-1", "nic-9", admin=True),
    )
    places = tuple(Placement(rank, "worker", "gpu-1", drawn=devices) for rank in (0, 1))
    return view(
        phase,
        pods=2,
        gpu_milli=2000,
        held_gpu_milli=2000 if drawn else 0,
        held_pods=2 if drawn else 0,
        placements=places if drawn else (),
        device_classes=(("gpus", 2), ("net", 6)),
        claimed=(("worker", "gpu", "gpu", "gpus"), ("worker", "net", "card", "net")),
        gres=(("gpus", "gpu:h100"), ("net", "nic")),
    )


def test_devices_are_shown_as_generic_resources_and_gpus_among_them_once() -> None:
    running, waiting = with_devices(), with_devices("queued", drawn=False)
    assert fields.tres_of(running).endswith(",node=1,gres/gpu=2,gres/nic=4")
    assert fields.FIELDS["AllocTRES"](running, NOW).endswith("gres/gpu=2,gres/nic=4")
    assert fields.tres_of(waiting).endswith(",node=2,gres/gpu=2,gres/nic=6")
    assert fields.FIELDS["ReqTRES"](running, NOW).endswith("gres/gpu=2,gres/nic=6")
    assert queue_fields.rows_as("%b", NOW)(waiting) == "gres/gpu:1,gres/nic:3"
    assert "TresPerNode=gres/gpu:1,gres/nic:3" in job_lines(waiting, NOW)
    assert fields.tres_of(waiting.model_copy(update={"gres": ()})).endswith("gres/gpu=2,gres/gpus=2,gres/net=6")


def test_a_node_shows_its_devices_as_generic_resources() -> None:
    uses = (("gpus", 8, 2, 0), ("net", 4, 3, 1))
    node = NodeView(
        name="gpu-1",
        pool="default",
        ready=True,
        gpus=8,
        gpu_model="h100",
        gpu_free=(1000,) * 6 + (0, 0),
        device_classes=uses,
        gres=(("gpus", "gpu"), ("net", "nic")),
    )
    assert "Gres=gpu:h100:8,nic:4 GresUsed=gpu:h100:2,nic:3" in node_lines(node)
    plain = NodeView(name="cpu-1", pool="default", ready=True)
    assert "Gres=(null) GresUsed=(null)" in node_lines(plain)
    rows = partitions([QueueView(name="research", pool="default")], [node, plain], by_gres=True)
    line = queue_fields.line_of("%P %D %G %N", {letter: value for letter, (_, value) in NODE_LETTERS.items()})
    assert [line(row) for row in rows] == ["research 1 (null) cpu-1", "research 1 gpu:h100:8,nic:4 gpu-1"]
    assert "TRES=cpu=0,node=1,gres/gpu=8,gres/nic=4" in partition_lines(rows[1:], [node, plain])


def test_get_says_which_devices_each_pod_has_and_of_which_class() -> None:
    facts = [told for told in job_facts(with_devices(), NOW) if "devices" in told[0] or "pod" in told[1]]
    ids = "nic.example.com/gpu-1/nic-0, nic.example.com/gpu-1/nic-1, nic.example.com/gpu-1/nic-9 (admin)"
    assert facts == [
        ("devices", "2 of gpus, 4 of net"),
        ("", f"pod 0: gpus: gpu.example.com/gpu-1/gpu-0; net: {ids}"),
        ("", f"pod 1: gpus: gpu.example.com/gpu-1/gpu-0; net: {ids}"),
    ]
    assert ("devices", "2 of gpus, 6 of net") in job_facts(with_devices("queued", drawn=False), NOW)
