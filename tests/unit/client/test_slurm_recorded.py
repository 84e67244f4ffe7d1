"""Slurm's words answer as a real Slurm did, command line by command line."""

import re
import shlex
from collections.abc import Collection
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tessera.client.cli import app
from tessera.client.commands.context import AccessOptions
from tessera.client.commands.slurm_words.sbatch import check_exclusive
from tessera.client.outcomes import Exit, Failure
from tessera.client.slurm.scripts.against import Against
from tessera.client.slurm.scripts.script import read_script
from tessera.kernel.clock import SystemClock
from tessera_schemas.reasons import PublicReason
from tessera_schemas.views import ArrayView, JobView, NodeView, QueueView
from tessera_schemas.work.placement import Placement
from tests.unit.client.slurm_recorded import RECORDED, SHOWN, Recorded

now_ms = SystemClock().now_ms
NOW = now_ms()
MIB = 2**20
ON_N1 = (Placement(0, "worker", "n1", (), 0),)
ARRAY = ArrayView(tasks="0-3", count=4, limit=2, running=2, left="2-3")


def job(number: int, name: str, phase: str, **more: Any) -> JobView:
    asks = {"pods": 1, "gpu_milli": 0, "cpu_milli": 1000, "memory_bytes": 100 * MIB, "user": "root"}
    where = {"job_id": chr(96 + number) * 20, "tenant": "root", "queue": "batch", "key": f"k{number}", "attempt": 1}
    base = {**asks, **where, "priority": 0, "priority_class": "normal", "submitted_ts": NOW - 1000}
    return JobView.model_validate({**base, "number": number, "name": name, "phase": phase, **more})


def jobs() -> list[JobView]:
    ended, running = (
        {"ended_ts": NOW, "started_ts": NOW, "nodes": ("n1",)},
        {"started_ts": now_ms(), "placements": ON_N1},
    )
    of_array = {**running, "task_of": "f" * 20, "array_number": 6}
    why = {name: PublicReason(code=name) for name in ("PodFailed", "QueueStopped", "ArrayTasks")}
    return [
        job(1, "wrap", "succeeded", **ended),
        job(2, "wrap", "succeeded", **ended),
        job(3, "bad", "failed", **ended, time_limit_seconds=600, exit_code=3, reason=why["PodFailed"]),
        job(4, "wait", "queued", queue="busy", reason=why["QueueStopped"]),
        job(5, "long", "running", time_limit_seconds=600, **running),
        job(6, "arr", "queued", array=ARRAY, reason=why["ArrayTasks"]),
        job(8, "arr", "running", task=0, **of_array),
        job(9, "arr", "running", task=1, **of_array),
    ]


class RememberedViews:
    """Views of the jobs that the recorded Slurm had."""

    async def jobs(self, phases: Collection[str] = (), **_: object) -> list[JobView]:
        return [job for job in jobs() if not phases or job.phase in phases]

    async def queues(self) -> list[QueueView]:
        return [QueueView(name="default", pool="p"), QueueView(name="busy", pool="p", stop_policy="hold")]

    async def nodes(self) -> list[NodeView]:
        return [
            NodeView(name=name, pool="p", ready=True, gpus=8, gpu_free=(1000,) * 8, cpu_milli=64_000)
            for name in ("n1", "n2")
        ]

    async def as_of(self) -> int:
        return 1

    async def expected_starts(self) -> dict[str, object]:
        return {}

    async def quotes(self) -> dict[str, object]:
        return {}

    async def job(self, named: str) -> JobView:
        for each in jobs():
            if named == str(each.number):
                return each
        raise Failure(Exit.NOT_FOUND, f"job {named}: there is none")


@pytest.fixture
def shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AccessOptions, "views", lambda at: RememberedViews())
    monkeypatch.setattr(AccessOptions, "find", lambda at: None)


def said(line: str) -> Result:
    return CliRunner().invoke(app, shlex.split(line))


def words(text: str) -> list[list[str]]:
    """The words of each line; a row of dashes has one dash for each column."""
    return sorted(re.sub("--+", "-", line).split() for line in text.splitlines())


@pytest.mark.usefixtures("shard")
@pytest.mark.parametrize("recorded", RECORDED, ids=lambda each: each.line)
def test_slurms_words_answer_as_slurm_does(recorded: Recorded) -> None:
    done = said(recorded.line)
    assert done.exit_code == recorded.code, done.output
    assert done.stderr.startswith(recorded.err)
    if recorded.out is not None:
        assert words(done.stdout) == words(recorded.out), done.output


@pytest.mark.usefixtures("shard")
@pytest.mark.parametrize("line", ["scontrol show job 5", "scontrol -o show jobid 5", "scontrol show job=5"])
def test_a_job_is_shown_with_slurms_names_in_slurms_order(line: str) -> None:
    shown = said(line).stdout
    assert (
        re.findall(r"(\S+?)=", shown.replace("TRES=cpu=1,mem=100M,node=1", "TRES="))[: len(SHOWN.split())]
        == SHOWN.split()
    )
    assert shown.startswith("JobId=5 JobName=long")
    assert "JobState=RUNNING Reason=None Dependency=(null)" in shown
    assert "RunTime=00:00:0" in shown
    assert "TimeLimit=00:10:00" in shown


@pytest.mark.usefixtures("shard")
@pytest.mark.parametrize(("order", "numbers"), [("i", "3 4 5"), ("-i", "5 4 3"), ("P,-i", "5 3 4"), ("-P,+i", "4 3 5")])
def test_jobs_are_in_the_order_that_is_asked_for(order: str, numbers: str) -> None:
    assert said(f"squeue -t all -h -o %i -j 3,4,5 --sort={order}").stdout.split() == numbers.split()
    assert said("squeue --sort=?").exit_code == 2


@pytest.mark.usefixtures("shard")
def test_nodes_and_long_lists_have_slurms_columns() -> None:
    by_node = said("sinfo -N -p default").stdout.splitlines()
    assert [line.split() for line in by_node] == [
        ["NODELIST", "NODES", "PARTITION", "STATE"],
        ["n1", "1", "default*", "idle"],
        ["n2", "1", "default*", "idle"],
    ]
    date, titles, *_ = said("squeue -l").stdout.splitlines()
    assert re.fullmatch(r"[A-Z][a-z]{2} [A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d \d{4}", date)
    assert titles.split() == [
        "JOBID",
        "PARTITION",
        "NAME",
        "USER",
        "STATE",
        "TIME",
        "TIME_LIMI",
        "NODES",
        "NODELIST(REASON)",
    ]


@pytest.mark.usefixtures("shard")
def test_a_partition_is_shown_with_slurms_names() -> None:
    second, first = said("scontrol show partition").stdout.split("\n\n")[:2]
    assert first.startswith("PartitionName=default\n   Default=YES ")
    assert "\n   Nodes=n[1-2]\n   State=UP TotalCPUs=128 TotalNodes=2\n" in first
    assert "TRES=cpu=128,node=2,gres/gpu=16" in first
    assert second.startswith("PartitionName=busy\n   Default=NO ")
    assert "State=DOWN " in second
    assert said("scontrol show partition nosuch").exit_code == 1


@pytest.mark.parametrize("name", ["sbatch", "squeue", "sacct", "scontrol", "sinfo", "scancel"])
def test_a_command_says_whose_words_it_has(name: str) -> None:
    assert said(f"{name} --version").stdout == said(f"{name} -V").stdout == "slurm 22.05.8\n"


@pytest.mark.usefixtures("shard")
@pytest.mark.parametrize(("gpus", "told"), [(8, False), (4, True), (0, True)])
async def test_a_node_of_ones_own_is_a_pod_with_all_its_gpus(gpus: int, told: bool) -> None:
    script = read_script("#!/bin/sh\n", "x", said=[("exclusive", "yes"), *([("gpus", str(gpus))] if gpus else [])])
    against = Against(script)
    spec = {"roles": [{"resources": {"gpus": gpus} if gpus else {}}]}
    await check_exclusive(AccessOptions(), script, spec, against)
    assert (against.error is not None and "--gpus-per-node=8" in str(against.error)) == told


@pytest.mark.usefixtures("shard")
def test_the_configuration_says_what_clients_ask_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AccessOptions, "find", lambda at: type("Here", (), {"shard": "main"}))
    shown = said("scontrol show config").stdout
    assert re.search(r"^MinJobAge +=\s*[0-9]+ sec$", shown, re.MULTILINE)
    assert re.search(r"^MaxArraySize\s*= 100000$", shown, re.MULTILINE)


def test_a_cancelled_job_names_the_user_who_did_it_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    why = PublicReason(code="Cancelled", detail="scancel by root")

    async def one(self: RememberedViews, *_: object) -> list[JobView]:
        return [job(4, "wait", "cancelled", ended_ts=NOW, reason=why)]

    monkeypatch.setattr(RememberedViews, "jobs", one)
    monkeypatch.setattr(AccessOptions, "views", lambda at: RememberedViews())
    assert said("sacct -X -n -P -o State").stdout == "CANCELLED by 0\n"
    assert said("sacct -X -n -o State%20").stdout.split() == ["CANCELLED", "by", "0"]
    assert said("sacct -X -n -o State").stdout == "CANCELLED\n"
    assert said("squeue -t all -h -o '%t %T'").stdout == "CA CANCELLED\n"
