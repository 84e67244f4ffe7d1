"""Tables fit into 80 columns whatever they hold; the other outputs lose nothing."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from typer import BadParameter

from tessera.client.commands.context import command
from tessera.client.commands.jobs.events import event_columns
from tessera.client.commands.ledger_care.ledger import ENTRIES
from tessera.client.commands.shard.views import NODES, job_columns, job_facts
from tessera.client.ledger.chain import ChainEntry
from tessera.client.views.queues import QUOTAS, QuotaRow
from tessera.client.views.rendering import COLUMNS, Output, notify, show, table
from tessera_schemas.events import CloudEvent
from tessera_schemas.reasons import Code, PublicReason
from tessera_schemas.views import JobView, LineStart, NodeView, QuotaUse

NOW = 1_760_000_000_000
LONG = "a" * 63
JOB = JobView(
    job_id="a" * 20, tenant=LONG, queue=LONG, name=LONG, key="k" * 200, phase="succeeded", priority=-1_000_000,
    attempt=999_999, pods=2048, gpu_milli=2048 * 64_000, submitted_ts=0,
    reason=PublicReason(code=Code.POD_REFUSED_BY_NODE.value),
)  # fmt: skip
NODE = NodeView(
    name="n" * 253, pool=LONG, ready=False, gpu_model=LONG, gpus=64, cpu_milli=10**9, memory_bytes=2**53,
    cpu_free_milli=999_999_999, memory_free_bytes=2**52 + 7, gpu_free=(999,) * 64,
)  # fmt: skip
EVENT = CloudEvent(
    specversion="1.0", id="9999999999.4095", source="s", type="io.tessera.job.allocated.v1", subject="x",
    time="2026-11-21T08:28:17.123Z", dataschema="d", tenant=LONG, sequence="1",
    data={"job_id": "a" * 20, "name": LONG, "reason": {"code": "NoFit", "detail": "d" * 500}},
)  # fmt: skip
ENTRY = ChainEntry(10**9, NOW, 10**6, "engine", 1, "tx", 10**9, 256, 524_288, "allocated ×512, waiting ×512, " * 5)


START = LineStart(at_ts=NOW + 10**10, rests_on=("time_limits",), words="in 115d17h, by the time limits of runs")


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (job_columns(NOW), JOB),
        (job_columns(NOW, {JOB.job_id: START}), JOB),
        (NODES, NODE),
        (event_columns(), EVENT),
        (ENTRIES, ENTRY),
    ],
    ids=["jobs", "starts", "nodes", "events", "ledger"],
)
def test_a_table_of_extreme_values_stays_within_80_columns(columns: list, row: object) -> None:  # type: ignore[type-arg]
    lines = table(columns, [row, row])
    assert len(lines) == 3
    assert max(map(cell_len, lines)) <= COLUMNS


def test_a_jobs_id_is_never_cut_since_people_copy_it() -> None:
    assert table(job_columns(NOW), [JOB])[1].startswith("a" * 20 + " ")


@given(st.text(max_size=200))
def test_whatever_a_name_holds_a_row_is_one_line_of_at_most_80_columns(name: str) -> None:
    lines = table(job_columns(NOW), [JOB.model_copy(update={"name": name})])
    assert len(lines) == 2
    assert cell_len(lines[1]) <= COLUMNS


def test_the_wide_table_cuts_nothing() -> None:
    assert "k" * 200 in table(job_columns(NOW), [JOB], wide=True)[1]


def test_a_table_is_as_wide_as_the_terminal_and_is_not_cut_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (60, 120, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert max(map(cell_len, table(job_columns(NOW), [JOB]))) <= columns
    monkeypatch.delenv("COLUMNS")
    assert f" {LONG} " in table(job_columns(NOW), [JOB])[1]


@pytest.mark.parametrize(
    ("said", "printed"),
    [
        ("name", "a" * 20),
        ("jsonpath={.items[*].phase}", "succeeded"),
        ("jsonpath={.items[0].pods}", "2048"),
        ("jsonpath={.items[7].pods}", ""),
        ('jsonpath={.as_of}{"\\n"}{.items[0].reason.code}', "42\nPodRefusedByNode"),
    ],
)
def test_names_and_paths_are_for_scripts(capsys: pytest.CaptureFixture[str], said: str, printed: str) -> None:
    show(Output.parse(said), job_columns(NOW), [JOB], 42)
    assert capsys.readouterr().out == f"{printed}\n"


@pytest.mark.parametrize("said", ["xml", "jsonpath", "jsonpath=", "jsonpath={x}", "jsonpath={.x", "jsonpath=.x"])
def test_what_is_no_format_is_said(said: str) -> None:
    with pytest.raises(BadParameter, match=r"is none of table, wide|no path"):
        Output.parse(said)


def test_a_table_says_as_of_which_record_it_holds(capsys: pytest.CaptureFixture[str]) -> None:
    show(Output.TABLE, job_columns(NOW), [JOB], 42, "1 jobs")
    assert capsys.readouterr().out.splitlines()[-1] == "as of 42, 1 jobs"


@pytest.mark.parametrize(("output", "read"), [(Output.JSON, json.loads), (Output.YAML, yaml.safe_load)])
def test_json_and_yaml_hold_the_whole_value(capsys: pytest.CaptureFixture[str], output: Output, read: object) -> None:
    show(output, job_columns(NOW), [JOB], 42)
    value = read(capsys.readouterr().out)  # type: ignore[operator]
    assert value["as_of"] == 42
    assert JobView.model_validate(value["items"][0]) == JOB


@pytest.mark.parametrize(("output", "read"), [(Output.JSON, json.loads), (Output.YAML, yaml.safe_load)])
def test_a_ledger_message_is_shown_with_all_its_fields(
    capsys: pytest.CaptureFixture[str], output: Output, read: object
) -> None:
    show(output, ENTRIES, [ENTRY], 42)
    (item,) = read(capsys.readouterr().out)["items"]  # type: ignore[operator]
    assert ChainEntry(**item) == ENTRY


def test_what_holds_a_view_is_printed_as_json_with_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    row = QuotaRow("research", QuotaUse(resource="gpu_milli", nominal=8000))
    show(Output.JSON, QUOTAS, [row], 42)
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert (item["queue"], QuotaUse.model_validate(item["quota"])) == ("research", row.quota)


def test_a_single_job_is_told_without_its_empty_values() -> None:
    told = dict(job_facts(JOB, NOW))
    assert told["why"].startswith("PodRefusedByNode")
    assert "nodes" not in told


def test_a_task_is_listed_by_its_array_and_index() -> None:
    task = JOB.model_copy(update={"task_of": "b" * 20, "task": 7})
    assert table(job_columns(NOW), [task])[1].startswith("b" * 20 + "_7 ")


STEERING = "\x1b]0;owned\x07\x1b[2J\x9b1m\r\x08\x7f\u202e\u2066\u2028"


@pytest.mark.parametrize("output", ["table", "wide", "json", "yaml", "jsonpath={.items[0].reason.detail}"])
def test_no_text_of_a_tenant_steers_the_terminal_of_who_looks(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    @command
    def look() -> None:
        row = JOB.model_copy(update={"reason": PublicReason(code="NoFit", detail=f"a{STEERING}b")})
        show(Output.parse(output), job_columns(NOW), [row], 7)
        notify(f"note: {row.reason and row.reason.detail}")
        print(f"{STEERING} as it is")

    look()
    said = capsys.readouterr()
    for letter in filter(lambda letter: not letter.isprintable(), STEERING):
        assert letter not in said.out + said.err, repr(letter)
    assert "\\u001b" in said.out
    assert "\\u202e" in said.err
    if output == "json":
        assert json.loads(said.out[: said.out.rindex("}") + 1])["items"][0]["reason"]["detail"] == f"a{STEERING}b"
