"""`tessera report` and `idle`: what they print of a small ledger, and that all of it adds up."""

import csv
import json
from decimal import ROUND_DOWN, Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tessera.client.cli import app
from tessera.client.commands.shard.accounts import WORDS, gpu_time
from tessera.client.outcomes import Exit
from tessera.engine.accounts.owners import USE, GpuCause
from tessera_schemas.config import Flavor, Level
from tessera_schemas.facts import RunAbsent, RunEnded, RunUsed
from tessera_schemas.work.measured_use import MeasuredUse
from tessera_schemas.work.money import GPU_HOUR, FlavorPrice, Money
from tests.builders import GIB, admitted, config_body, job_spec, node_seen, role
from tests.contract.golden_files import FOLDER
from tests.ledgers import Committed
from tests.published_devices import claim, claiming, class_seen, gpus_with_nics, layout_seen, offering, selected

HOUR = 3_600_000
BEGIN = 490_000 * HOUR
EXPORTS = ("0.3-demo", "0.3-faults", "0.4-faults")


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Eight GPUs for four hours: two of them are used for an hour, then nine are asked for."""
    ledger = Committed(ts=BEGIN - 3000).begin(node_seen("node-a"))
    job = admitted("k1", job_spec(role(gpus=2)))
    ledger.commit(job, ms=HOUR)
    run = ledger.start(job.job_id, "k1")
    ledger.commit(RunEnded(kind="run_ended", run_id=run), ms=HOUR)
    ledger.commit(RunAbsent(kind="run_absent", run_id=run))
    ledger.commit(admitted("k2", job_spec(role(gpus=9))), ms=HOUR)
    ledger.commit(ms=HOUR)
    file = tmp_path / "export.jsonl"
    file.write_bytes(b"".join(data + b"\n" for data in ledger.stored))
    return file


def ran(command: str, file: Path, *options: str, code: Exit = Exit.OK) -> str:
    """What it prints, or where it fails its complaint."""
    result = CliRunner().invoke(app, [command, "--from-file", str(file), *options], env={"TZ": "UTC"})
    assert result.exit_code == code, result.output
    return result.stderr if code else result.stdout


def test_a_report_has_a_row_for_each_tenant_and_its_sum_is_the_capacity(export: Path) -> None:
    assert [line.split() for line in ran("report", export).splitlines()[:-1]] == [
        ["TENANT", "USED", "HELD", "KEPT", "GPU", "TIME", "PERCENT"],
        ["lab", "2:00:00", "0:00:06", "2:00:06", "6.2"],
        ["(free)", "30:00:26", "93.7"],
        ["(sum)", "2:00:00", "0:00:06", "32:00:32", "100.0"],
        ["(capacity)", "32:00:32", "100.0"],
    ]


def test_idle_names_causes_in_words(export: Path) -> None:
    assert ran("idle", export, "-o", "wide").splitlines()[:-1] == [
        "CAUSE          GPU TIME  PERCENT",
        "nothing_waits  22:00:18     68.7  free, and nothing waits for them",
        "gpu             8:00:00     24.9  free, and too few on a node, or parts, for all that waits",
        "used            2:00:00      6.2  used by runs",
        "work_waits      0:00:08      0.0  free while work waits, for reasons that the account does not prove",
        "starting        0:00:04      0.0  held by runs that start",
        "stopping        0:00:02      0.0  held by runs that stop",
        "(sum)          32:00:32    100.0",
        "(capacity)     32:00:32    100.0",
    ]


def test_by_project_each_tenant_has_its_own_and_a_row_for_what_names_none(tmp_path: Path) -> None:
    ledger = Committed(ts=BEGIN - 3000).begin(node_seen("node-a"), body=config_body(tenants=("lab", "ops")))
    for key, tenant, project in (("k1", "lab", "vlm"), ("k2", "lab", ""), ("k3", "ops", "vlm")):
        job = admitted(key, job_spec(role(gpus=1), project=project), tenant=tenant)
        ledger.commit(job)
        run = ledger.start(job.job_id, key)
        ledger.commit(RunEnded(kind="run_ended", run_id=run), ms=HOUR)
        ledger.commit(RunAbsent(kind="run_absent", run_id=run))
    file = tmp_path / "export.jsonl"
    file.write_bytes(b"".join(data + b"\n" for data in ledger.stored))
    told = json.loads(ran("report", file, "--by", "project", "-o", "json"))
    used = {item["name"]: item["causes"].get("used", 0) for item in told["items"]}
    hour = 1000 * HOUR
    assert used == {"lab/vlm": hour, "lab/-": hour, "ops/vlm": hour, "(free)": 0}


def test_what_worked_stands_beside_what_is_used_where_it_was_measured(tmp_path: Path) -> None:
    ledger = Committed(ts=BEGIN - 3000).begin(node_seen("node-a"))
    job = admitted("k1", job_spec(role(gpus=2)))
    ledger.commit(job, admitted("k2", job_spec(role(gpus=1))))
    run = ledger.start(job.job_id, "k1")
    for hours, worked in ((1, 1), (2, 3)):
        used = {"measured_gpu_milli_ms": 2000 * HOUR * hours, "worked_gpu_milli_ms": 500 * HOUR * worked}
        use = MeasuredUse(**used, gpus=2, busy_gpus=1)
        ledger.commit(RunUsed(kind="run_used", run_id=run, use=use), ms=HOUR)
    file = tmp_path / "export.jsonl"
    file.write_bytes(b"".join(data + b"\n" for data in ledger.stored))
    head, lab, *rest = (line.split() for line in ran("report", file).splitlines()[:-1])
    assert head == ["TENANT", "USED", "HELD", "KEPT", "MEASURED", "WORKED", "GPU", "TIME", "PERCENT"]
    assert lab[-4:-2] == ["4:00:00", "1:30:00"]
    assert rest[-1][:1] == ["(capacity)"]
    told = json.loads(ran("report", file, "--by", "job", "-o", "json"))
    assert told["sum"] == told["capacity"] == sum(sum(item["causes"].values()) for item in told["items"])
    (item,) = (item for item in told["items"] if item["name"] == job.job_id)
    assert (item["measured"], item["worked"]) == (4000 * HOUR, 1500 * HOUR)
    assert "measured" not in ran("report", file, "-o", "csv")
    assert "MEASURED" not in ran("idle", file)
    assert "MEASURED" not in ran("report", file, "--resource", "cpu")


def test_cpu_and_memory_sum_to_their_capacity(tmp_path: Path) -> None:
    ledger = Committed(ts=BEGIN - 3000).begin(node_seen("node-a", cpu_milli=8000, memory_bytes=4 * GIB))
    job = admitted("k1", job_spec(role(gpus=1, cpu_milli=2000, memory_bytes=GIB)))
    ledger.commit(job, ms=HOUR)
    ledger.start(job.job_id, "k1")
    ledger.commit(ms=HOUR)
    file = tmp_path / "export.jsonl"
    file.write_bytes(b"".join(data + b"\n" for data in ledger.stored))
    found = {
        resource: [line.split() for line in ran("report", file, "--resource", resource).splitlines()[:-1]]
        for resource in ("cpu", "memory")
    }
    assert found["cpu"] == [
        ["TENANT", "USED", "HELD", "KEPT", "CPU", "TIME", "PERCENT"],
        ["lab", "2:00:00", "0:00:04", "2:00:04", "12.5"],
        ["(free)", "14:00:20", "87.4"],
        ["(sum)", "2:00:00", "0:00:04", "16:00:24", "100.0"],
        ["(capacity)", "16:00:24", "100.0"],
    ]
    assert found["memory"][1] == ["lab", "1:00:00", "0:00:02", "1:00:02", "12.5"]
    told = json.loads(ran("idle", file, "--resource", "memory", "-o", "json"))
    assert told["unit"] == "memory_byte_ms"
    assert told["sum"] == told["capacity"]
    assert {item["name"] for item in told["items"]} == {"used", "starting", "free"}


def test_idle_by_rack_names_the_racks_of_the_topology(tmp_path: Path) -> None:
    body = config_body().model_copy(update={"topology": (Level(name="rack", label="r"), Level(name="host", label="h"))})
    nodes = [node_seen("node-a", 4, labels={"r": "left"}), node_seen("node-b", 2, labels={"r": "right"})]
    ledger = Committed(ts=BEGIN).begin(*nodes, node_seen("node-c", 1), body=body)
    ledger.commit(ms=HOUR)
    file = tmp_path / "export.jsonl"
    file.write_bytes(b"".join(data + b"\n" for data in ledger.stored))
    assert {row.split()[0] for row in ran("idle", file, "--by", "model").splitlines()[1:-3]} == {"h100"}
    rows = [line.split() for line in ran("idle", file, "--by", "rack").splitlines()]
    assert {tuple(row[:2]) for row in rows[1:4]} == {("left", "(free)"), ("right", "(free)"), ("-", "(free)")}
    told = json.loads(ran("idle", file, "--by", "rack", "-o", "json"))
    assert told["sum"] == told["capacity"]
    free = {item["name"]: item["sum"] for item in told["items"]}
    assert free["left (free)"] == 2 * free["right (free)"] == 4 * free["- (free)"]


@pytest.mark.parametrize("words", [("idle", "--by", field) for field in ("model", "rack", "decision")], ids=" ".join)
def test_what_the_gateway_does_not_have_says_how_it_is_read(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*words])
    assert result.exit_code == Exit.USAGE
    assert "add --from-ledger or --from-file" in result.stderr


def test_every_cause_has_words() -> None:
    assert set(WORDS) == set(GpuCause) - {GpuCause.CAPACITY, *USE}


def test_since_and_until_cut_to_the_millisecond(export: Path) -> None:
    span = "--since", "2025-11-24T16:30:00Z", "--until", "2025-11-24T17:30:00.001Z"
    told = json.loads(ran("report", export, *span, "-o", "json"))
    assert (told["until_ts"] - told["since_ts"], told["capacity"]) == (HOUR + 1, 8000 * (HOUR + 1))
    assert told["sum"] == told["capacity"]


def test_a_time_of_which_the_ledger_has_nothing_is_told_with_that_of_which_it_has(export: Path) -> None:
    assert "nothing of that time, it is of 2025-11-24 " in ran("report", export, "--since", "0s", code=Exit.NOT_FOUND)


def test_a_time_that_cannot_be_read_is_a_mistake_by_name(export: Path) -> None:
    assert "--until=soon" in ran("idle", export, "--until", "soon", code=Exit.USAGE)


@pytest.mark.parametrize("name", EXPORTS)
@pytest.mark.parametrize(
    ("command", "by"),
    [
        *(("report", by) for by in ("tenant", "queue", "user", "project", "job", "flavor")),
        *(("idle", by) for by in ("cause", "queue", "flavor")),
    ],
)
def test_whatever_it_is_summed_up_by_csv_and_json_sum_to_the_capacity(name: str, command: str, by: str) -> None:
    file = FOLDER / "ledgers" / f"{name}.jsonl"
    told = json.loads(ran(command, file, "--by", by, "-o", "json"))
    assert told["sum"] == told["capacity"] == sum(item["sum"] for item in told["items"]) > 0
    header, *lines, total, capacity = csv.reader(ran(command, file, "--by", by, "-o", "csv").splitlines())
    assert header == [by, "cause", "gpu_milli_ms"]
    assert sum(int(amount) for *_, amount in lines) == told["sum"]
    assert (total, capacity) == (["(sum)", "", str(told["sum"])], ["(capacity)", "", str(told["capacity"])])


def test_gpu_time_keeps_every_digit() -> None:
    assert [gpu_time(amount) for amount in (0, 1, 3_600_000_000, 90_000_000_500)] == [
        "0:00:00",
        "0:00:00.000001",
        "1:00:00",
        "25:00:00.0005",
    ]


def test_focus_has_rows_by_job_and_hour_whose_costs_sum_to_what_the_jobs_held(
    tmp_path: Path,
) -> None:
    prices = (
        FlavorPrice(flavor="a100", gpu_hour_micros=2_100_001),
        FlavorPrice(flavor="a100", gpu_hour_micros=1_950_000, since="2025-11-24T18"),
    )
    flavors = (Flavor(name="a100", gpu_models=("a100",)),)
    body = config_body(flavors=flavors).model_copy(update={"money": Money(currency="EUR", prices=prices)})
    ledger = Committed(ts=BEGIN - 3000).begin(node_seen("node-a", gpu_model="a100"), body=body)
    jobs = []
    for key, gpus, ms, project in (("k1", 2, HOUR + 7, ""), ("k2", 3, 5 * HOUR, "vlm")):
        job = admitted(key, job_spec(role(gpus=gpus), project=project))
        ledger.commit(job, ms=HOUR // 2)
        run = ledger.start(job.job_id, key)
        ledger.commit(RunEnded(kind="run_ended", run_id=run), ms=ms)
        ledger.commit(RunAbsent(kind="run_absent", run_id=run))
        ended = ledger.state.ended.get(job.job_id)
        assert ended is not None
        jobs.append(ended)
    file = tmp_path / "export.jsonl"
    file.write_bytes(b"".join(data + b"\n" for data in ledger.stored))
    rows = list(csv.DictReader(ran("report", file, "-o", "focus").splitlines()))
    assert list(rows[0]) == sorted(rows[0]), "columns are in order"
    assert {(row["SubAccountId"], row["SkuId"], row["BillingCurrency"]) for row in rows} == {("lab", "a100", "EUR")}
    cost = sum(Decimal(job.cost_micros) + Decimal(job.cost_rest) / GPU_HOUR for job in jobs) / 1_000_000
    # A job's own cost ends with its run; its pods were there for one second more.
    cost += (2 * Decimal("2.100001") + 3 * Decimal("1.95")) / 3600
    assert sum(Decimal(row["BilledCost"]) for row in rows) == cost.quantize(Decimal("1e-9"), ROUND_DOWN) > 0
    tags = {row["ResourceId"]: json.loads(row["Tags"]) for row in rows}
    assert [tags[job.job_id].get("project") for job in jobs] == [None, "vlm"]
    held = [owner for owner in rows if owner["ChargePeriodStart"] == "2025-11-24T20:00:00Z"]
    assert sum(Decimal(row["ConsumedQuantity"]) for row in held) == 3
    assert sum(Decimal(row["BilledCost"]) for row in held) == Decimal("5.85")


def test_focus_without_prices_and_of_idle_gpus_is_refused_in_words(export: Path) -> None:
    assert "no prices" in ran("report", export, "-o", "focus", code=Exit.NOT_FOUND)
    assert "costs nobody" in ran("idle", export, "-o", "focus", code=Exit.USAGE)


def claimed(tmp_path: Path) -> Path:
    """A job has two of four cards of a class `net` for an hour, and no GPU."""
    layout = gpus_with_nics(4)
    ledger = Committed(ts=BEGIN - 3000).begin(layout_seen(layout), class_seen("net", "nic"))
    ledger.commit(selected(layout, 0xF0, "nic"), offering("node-0", layout, 4))
    job = admitted("k1", job_spec(claiming(claim("nic", 2, "net"))))
    ledger.commit(job)
    run = ledger.start(job.job_id, "k1")
    ledger.commit(RunEnded(kind="run_ended", run_id=run), ms=HOUR)
    file = tmp_path / "export.jsonl"
    file.write_bytes(b"".join(data + b"\n" for data in ledger.stored))
    return file


def test_devices_of_a_class_are_summed_up_and_have_no_capacity(tmp_path: Path) -> None:
    file = claimed(tmp_path)
    assert [line.split() for line in ran("report", file, "--resource", "class:net").splitlines()[:-1]] == [
        ["TENANT", "USED", "HELD", "KEPT", "DEVICE", "TIME", "PERCENT"],
        ["lab", "2:00:00", "0:00:04", "2:00:04", "100.0"],
        ["(sum)", "2:00:00", "0:00:04", "2:00:04", "100.0"],
    ]
    rows = list(csv.reader(ran("report", file, "--resource", "class:net", "-o", "csv").splitlines()))
    assert rows == [
        ["tenant", "cause", "device_ms"],
        ["lab", "used", str(2 * HOUR)],
        ["lab", "starting", "4000"],
        ["(sum)", "", str(2 * HOUR + 4000)],
    ]
    told = json.loads(ran("report", file, "--resource", "class:net", "--by", "job", "-o", "json"))
    assert (told["unit"], told["sum"], told["capacity"]) == ("device_ms", 2 * HOUR + 4000, 0)
    gpus = json.loads(ran("report", file, "-o", "json"))
    assert gpus["sum"] == gpus["capacity"] >= 4 * 1000 * HOUR


def test_what_is_free_of_a_class_is_no_sum_and_a_resource_that_is_none_is_refused(tmp_path: Path) -> None:
    file = claimed(tmp_path)
    assert "devices of a class may overlap" in ran("idle", file, "--resource", "class:net", code=Exit.USAGE)
    assert "write gpu, cpu, memory or class:NAME" in ran("report", file, "--resource", "net", code=Exit.USAGE)
