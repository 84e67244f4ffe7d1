"""The commands as people type them, on real processes: each says what came of it, and its exit code agrees."""

import asyncio
import contextlib
import getpass
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from tessera.binder.pods.stopping import gone_is_fine
from tessera.client.slurm.scripts.pods import SCRIPT_BYTES_MAX
from tessera.domain.state import State
from tessera_schemas.base import job_id as make_job_id
from tessera_schemas.config import Policy, Queue, Quota
from tessera_schemas.work.arrays import Dependency, JobArray
from tests.e2e.live import SECONDS, Live, Said, configuration, eventually, job, started
from tests.e2e.platform_checks import assert_all_is_well
from tests.exec_calls import Call, exec_calls

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUOTA = Quota(resource="gpu_milli", nominal=32_000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    """Two queues, and a preset under which a higher class evicts a lower one at once."""
    queues = (Queue(name="default", quotas=(QUOTA,)), Queue(name="night", weight=2))
    policy = Policy(preset="priority", min_runtime_seconds=0)
    async with Live.at(tmp_path_factory.mktemp("commands"), configuration(queues=queues, policy=policy)) as live:
        yield live


@contextlib.asynccontextmanager
async def filled(live: Live) -> AsyncIterator[str]:
    """Every GPU is held by one job meanwhile; afterwards everything is cancelled."""
    done = await live.submit(job("filler", gpus=8, replicas=4, seconds=600))
    await live.until_phase(done.job_id, "running")
    try:
        yield done.job_id
    finally:
        for found in list(live.state.jobs.values()):
            await live.clients["lab"].cancel(found.job_id)
        await live.until_idle()


async def ok(live: Live, *words: str) -> Said:
    """
    What a command says that does what is asked.

    It reads views that are as new as the state that the test looks at, where then is what it did.
    """
    await live.until_shown()
    said = await live.command(*words, environment={"COLUMNS": "80"})
    assert said.code == 0, said
    await live.until_folded()
    assert "-o" in words or all(len(line) <= 80 for line in said.out.splitlines()), said.out
    return said


async def clear_away_pods_that_ended(live: Live) -> None:
    """As `kubectl delete` does it: a job by sbatch keeps its pods for an hour, and no option of sbatch's says less."""
    await live.until_idle()
    cluster = live.cluster()
    try:
        found, _ = await cluster.list("pods")
        for pod in (pod["metadata"] for pod in found):
            await gone_is_fine(cluster.delete_pod(pod["namespace"], pod["name"], pod["uid"]))
    finally:
        await cluster.close()


async def test_a_held_job_stays_until_it_is_released(live: Live) -> None:
    async with filled(live) as filler:
        done = await live.submit(job("patient", seconds=0.1))
        assert (
            await ok(live, "hold", "patient")
        ).out == f"job {done.job_id} is held by an operator, who alone releases it\n"
        assert live.state.jobs.get(done.job_id).held  # type: ignore[union-attr]
        explained = (await ok(live, "explain", "patient", "-o", "json")).json
        assert explained["reason"]["code"] == "HeldByOperator"
        assert explained["story"][0]["why"].startswith("queue default")
        assert [reason["code"] for reason in explained["others"]] == ["WaitingForQuota", "NoFit"]
        assert explained["holders"][0]["job_id"] == filler
        token = live.platform.credentials.operator_token
        away = token.rename(token.with_suffix(".away"))  # then the ledger is folded by the command
        folded = (await ok(live, "explain", "patient", "-o", "json")).json
        away.rename(token)
        assert folded | {"as_of": 0} == explained | {"as_of": 0}
        refused = await live.command("release", "patient", "--as", "lab")
        assert (refused.code, "HeldByOperator" in refused.err) == (6, True), refused
        assert (await ok(live, "release", "patient")).out == f"job {done.job_id} is released\n"
    missing = await live.command("hold", "nobody")
    assert (missing.code, missing.err) == (
        3,
        "error: job nobody: there is none with this id or name; see `tessera ls`\n",
    )
    await assert_all_is_well(live)


async def test_a_run_that_is_put_back_in_line_starts_again_and_spends_no_attempt(live: Live) -> None:
    done = await live.submit(job("again", seconds=600))
    for attempt, words in enumerate((("requeue", "again"), ("scontrol", "requeue", "again"), ()), start=1):
        await live.until(partial(_runs, job_id=done.job_id, attempt=attempt), f"attempt {attempt} runs")
        if words:
            await ok(live, *words)
    assert live.state.jobs.get(done.job_id).strikes == 0  # type: ignore[union-attr]

    async def each_run_is_told() -> bool:
        said = await live.command("sacct", "-D", "-n", "-P", "-j", "again", "-o", "State,ExitCode")
        return said.out.split() == ["REQUEUED|0:0", "REQUEUED|0:0", "RUNNING|0:0"]

    await eventually(each_run_is_told, "each run has a line of sacct -D")
    await ok(live, "cancel", "again")
    await live.until_ended(done.job_id)
    assert (await live.command("requeue", "again")).code == 4
    await assert_all_is_well(live)


def _runs(state: State, job_id: str, attempt: int) -> bool:
    found = state.jobs.get(job_id)
    return found is not None and found.phase == "running" and found.attempt == attempt


async def test_a_job_gets_another_spec_while_it_waits_and_a_lower_limit_while_it_runs(live: Live) -> None:
    async with filled(live) as filler:
        found = (await live.submit(job("patient", seconds=0.1))).job_id
        said = await ok(live, "update", "patient", "--time-limit", "2h", "--name", "renamed")
        assert said.out == f"job {found} has its new time limit, name now\n"
        put_off = ["StartTime=now+1hour", f"Dependency=afterany:{filler}"]
        await ok(live, "scontrol", "update", f"JobId={found}", "TimeLimit=90", *put_off)
        shown = yaml.safe_load((await ok(live, "get", "renamed", "-o", "yaml")).out)
        spec = shown["spec"]
        assert (shown["name"], spec["name"], spec["time_limit_seconds"]) == ("renamed", "renamed", 5400)
        assert (spec["begin_ts"], spec["after"][0]["job"]) == (shown["not_before"], filler)
        await ok(live, "scontrol", "update", f"JobId={found}", "StartTime=now", "Dependency=")
        loop = await live.command("update", found, "--after", f"afterok:{found}")
        assert (loop.code, "unless the ledger refused it" in loop.err) == (10, True)
        told = " ".join((await ok(live, "explain", found)).out.split())
        assert "job.updated by operator: time limit 2h; called renamed" in told
        recorded = " ".join((await ok(live, "ledger", "story", found)).out.split())
        assert "an update was refused" in recorded
        assert "would wait for itself" in recorded
        assert (await ok(live, "update", filler, "--time-limit", "4h")).out.endswith("new time limit now\n")
        higher = await live.command("update", filler, "--time-limit", "5h")
        assert (higher.code, "Kubernetes lets nobody raise" in higher.err) == (6, True)
        await ok(live, "update", filler, "--time-limit", "1s")
        await live.until_phase(filler, "failed")
        assert live.state.ended.get(filler).reason.code == "TimeLimit"
        await live.until_phase(found, "succeeded")


async def test_the_doctor_looks_at_the_cluster_of_the_platform_on_this_machine(live: Live) -> None:
    said = await live.command("doctor")
    assert (said.code, said.out.startswith("nothing found"), said.err) == (0, True, "")


async def test_a_dead_scheduler_and_a_dead_gateway_are_told_by_status_and_doctor(live: Live) -> None:
    assert (await ok(live, "status")).out.startswith(f"shard {live.shard_name}: well\n")
    async with live.down("scheduler"), live.down("gateway"):  # the operator looks alone
        for command in ("status", "doctor"):
            said = await live.command(command)
            assert (said.code, said.err) == (1, "")
            assert "no scheduler leads" in said.out
            assert "no gateway is heard of" in said.out
        misspelt = await live.command("doctor", environment={"TESSERA_SHRAD": "b"})
        assert "TESSERA_SHRAD: no setting is called so (is TESSERA_SHARD meant?)" in misspelt.out


async def test_what_explain_offers_is_what_the_plan_and_a_higher_class_then_do(live: Live) -> None:
    async with filled(live) as filler:
        done = await live.submit(job("rush", gpus=8, seconds=600))
        await live.until(lambda state: bool((j := state.jobs.get(done.job_id)) and j.reason), "it is said why it waits")
        text = " ".join((await ok(live, "explain", "rush")).out.split())
        assert "priority class high, which evicts run " + filler in text
        none = await live.command("preempt", "rush", "--dry-run")
        assert (none.code, "there is no plan for rush" in none.out) == (1, True)
        assert (await live.command("preempt", "rush")).code == 2
        unknown = await live.command("prio", "rush", "royal")
        assert (unknown.code, "NoSuchPriorityClass" in unknown.err) == (6, True)
        assert (await ok(live, "prio", "rush", "high")).out == f"job {done.job_id} has priority class high now\n"
        await live.until_phase(done.job_id, "running")
        assert f"for job {done.job_id}" in " ".join((await ok(live, "explain", filler)).out.split())
    await assert_all_is_well(live)


async def test_a_drained_node_takes_nothing_until_it_is_common_again(live: Live) -> None:
    node = sorted(live.state.nodes.found(name for name, _ in live.state.nodes.items()), key=lambda n: n.name)[0].name
    assert (await ok(live, "drain", node, "--why", "new disks")).out == f"node {node} is drained, and empty\n"
    assert any(node in line and "drain" in line for line in (await ok(live, "sinfo")).out.splitlines())
    done = await live.submit(job("everywhere", gpus=8, replicas=4, seconds=0.1))
    await live.until(lambda state: bool((j := state.jobs.get(done.job_id)) and j.reason), "it is said why it waits")
    text = " ".join((await ok(live, "explain", "everywhere")).out.split())
    assert f"Node {node} is drained by an operator: new disks" in text
    assert f"`tessera undrain {node}`" in text
    assert (await ok(live, "undrain", node)).out == f"node {node} takes jobs again\n"
    await live.until_ended(done.job_id)
    assert (await live.command("drain", "nowhere")).code == 3
    tenants = await live.command("drain", node, "--as", "lab")
    assert (tenants.code, "lab is a tenant" in tenants.err) == (2, True)
    await assert_all_is_well(live)


async def test_a_queue_is_held_shown_and_released(live: Live) -> None:
    assert (await ok(live, "queue", "hold", "night")).out.startswith("queue night is held")
    done = await live.submit(job("nightly", queue="night", seconds=0.1))
    assert "night" in (await ok(live, "queue", "list")).out
    assert "held" in (await ok(live, "queue", "show", "night")).out
    explained = (await ok(live, "explain", done.job_id, "-o", "json")).json
    assert explained["reason"]["code"] == "QueueStopped"
    assert (await ok(live, "queue", "release", "night")).out.startswith("queue night is open")
    await live.until_ended(done.job_id)
    assert (await live.command("queue", "hold", "nowhere")).code == 3
    rows = (await ok(live, "quota", "-o", "json")).json["items"]
    assert [(row["queue"], row["quota"]["nominal"]) for row in rows] == [("default", 32_000)]
    await assert_all_is_well(live)


@pytest.mark.parametrize("away", ["scheduler", "projection"])
async def test_an_undo_is_carried_out_although_the_lists_were_behind_when_it_was_sent(
    live: Live, tmp_path: Path, away: str
) -> None:
    """Without a scheduler nothing is decided, without a projection nothing is shown: commands are sent all the same."""
    file, held, body = tmp_path / "shard.yaml", tmp_path / "held.yaml", (await ok(live, "config", "show")).out
    file.write_text(body)
    queues = [each | {"stop_policy": "hold"} for each in yaml.safe_load(body)["queues"]]
    held.write_text(yaml.safe_dump(yaml.safe_load(body) | {"queues": queues}))
    node = min(name for name, _ in live.state.nodes.items())
    async with filled(live):
        waits = (await live.submit(job("undone", gpus=8, seconds=600))).job_id
        await live.until(lambda state: bool((j := state.jobs.get(waits)) and j.reason), "it waits")
        await live.until_shown()
        before = live.state.config.version
        pairs = [
            (("drain", node), ("undrain", node)),
            (("hold", waits), ("release", waits)),
            (("prio", waits, "high"), ("prio", waits, "normal")),
            (
                ("queue", "move", "default", "night", "--job", waits),
                ("queue", "move", "night", "default", "--job", waits),
            ),
            (("apply", "--yes", "--timeout", "1", "-f", str(held)), ("apply", "--timeout", "1", "-f", str(file))),
        ]
        async with live.down(away):

            async def both(first: tuple[str, ...], undo: tuple[str, ...]) -> list[Said]:
                return [await live.command(*first), await live.command(*undo)]

            said = await asyncio.gather(*(both(*pair) for pair in pairs))
            assert [(one.code, one.out) for pair in said for one in pair if one.code != 10] == [], said
            assert not any("restart" in one.err for pair in said for one in pair)
            assert all("judged" in one.err and "config show" in one.err for one in said[-1])
        await live.until(lambda state: state.config.version > before, "what was sent is decided")
        await live.until_shown()
        found = live.state.jobs.get(waits)
        assert found is not None
        assert (found.held, found.priority_class, found.queue) == (False, "normal", "default")
        assert live.state.drains.get(node) is None
        # Of two configurations made from one version the first comes into force, and the undo was told to look again.
        assert live.state.config.version == before + 1
        assert {queue.stop_policy for queue in live.state.config.body.queues} == {"hold"}  # type: ignore[union-attr]
        for name in ("night", "default"):
            assert (await ok(live, "queue", "release", name)).out.startswith(f"queue {name} is open")
    await assert_all_is_well(live)


async def test_a_file_that_would_strand_jobs_is_refused_and_a_move_makes_way(live: Live, tmp_path: Path) -> None:
    file, body = tmp_path / "shard.yaml", yaml.safe_load((await ok(live, "config", "show")).out)
    file.write_text(yaml.safe_dump({**body, "queues": [*body["queues"], {"name": "child", "parent": "default"}]}))
    async with filled(live):
        done = await live.submit(job("patient", gpus=8, seconds=0.1))
        await live.until(lambda state: state.jobs.get(done.job_id) is not None, "it waits")
        refused = await live.command("apply", "-f", str(file), "--yes")
        assert (refused.code, "StillInUse: queues.default" in refused.err) == (6, True)
        assert "running 1, waiting 1" in refused.err
        assert (await live.command("queue", "move", "default", "nowhere")).code == 3
        moved = await ok(live, "queue", "move", "default", "night", "--as", "lab")
        assert moved.out == "1 of 1 jobs moved from default to night\n"
        assert live.state.jobs.get(done.job_id).queue == "night"  # type: ignore[union-attr]
        await ok(live, "queue", "hold", "night")
        file.write_text(yaml.safe_dump({**body, "topology": [{"name": "zone", "label": "zoen"}]}))
        applied = await live.command("apply", "-f", str(file), "--yes", "-o", "json")
        assert applied.code == 0
        assert [warning["field"] for warning in applied.json["warnings"]] == ["topology.zone"]
        assert live.state.tree.queues["night"].stop_policy == "hold"
        file.write_text(yaml.safe_dump({**body, "version": applied.json["version"] - 1}))
        stale = await live.command("apply", "-f", str(file), "--yes")
        assert (stale.code, "ConfigConflict: version" in stale.err) == (6, True)
        file.write_text(yaml.safe_dump(body))
        assert (await live.command("apply", "-f", str(file), "--yes")).code == 0
        await ok(live, "queue", "release", "night")
    await assert_all_is_well(live)


async def test_slurms_words_do_what_they_say(live: Live, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    lines = [
        "#!/bin/bash",
        "#SBATCH --job-name=batch",
        "#SBATCH --nodes=2 --gres=gpu:8",
        "#SBATCH -t 60",
        "srun sleep 600",
    ]
    script.write_text("\n".join(lines) + "\n")
    refused = await live.command("sbatch", str(script), "--as", "lab")
    assert (refused.code, "no container image" in refused.err) == (2, True)
    words = ("sbatch", "--as", "lab", "--key", "batch", "--container-image", "train:1", "--hold", str(script))
    async with filled(live):  # so that it cannot start before it is held
        said = await ok(live, *words)
        live.acknowledged.append(("lab", "batch"))
        number = said.out.split()[-1]
        note = f"note: {script}: 2 pods with one task each\n"
        assert (said.out, said.err) == (f"Submitted batch job {number}\n", note)
        assert number.isdecimal()

        async def is_listed() -> bool:
            return "batch" in (await ok(live, "squeue", "-u", getpass.getuser())).out

        await eventually(is_listed, "the views show what was submitted a moment ago")
        (line,) = (line for line in (await ok(live, "squeue", "-h", "-j", number)).out.splitlines())
        assert line.split()[:6] == [number, "default", "batch", getpass.getuser(), "PD", "0:00"]
        assert line.endswith("(JobHeldUser)")
        assert f"JobId={number} " in (await ok(live, "scontrol", "show", "job", number)).out
        await ok(live, "release", number)
        assert (await ok(live, "scancel", number)).out == ""
        await live.until_ended(live.id_of(number))
    refused = await live.command("sbatch", "--wrap=true", "--switches=1", "--nice=5", "--turbo", "--as", "lab")
    assert refused.code == 6
    told = ["NotSupportedYet --switches", "NotSupportedYet --nice", "UnknownField --turbo"]
    assert refusals(refused) == [*told, "InvalidField --container-image"]
    await assert_all_is_well(live)


async def test_a_script_of_the_greatest_length_runs_and_a_longer_one_is_refused(live: Live, tmp_path: Path) -> None:
    script = tmp_path / "long.sh"
    common = ("sbatch", "--parsable", "--as", "lab", "--container-image", "train:1", "--gres=gpu:1")
    for size, code in ((SCRIPT_BYTES_MAX, 0), (SCRIPT_BYTES_MAX + 1, 2)):
        first = "#!/bin/bash\n"
        script.write_text(first + "".join(f"# {line:60}\n" for line in range(5000))[: size - len(first)])
        said = await live.command(*common, "--key", f"long-{size}", str(script))
        assert said.code == code, said
    assert f"long.sh: {SCRIPT_BYTES_MAX + 1} bytes; a script has at most {SCRIPT_BYTES_MAX}" in said.err
    done = await ok(live, "get", "long.sh", "-o", "json")
    await live.until_ended(done.json["job_id"])
    assert (await ok(live, "sacct", "-n", "-P", "-j", "long.sh", "-o", "State")).out == "COMPLETED\n"
    await clear_away_pods_that_ended(live)


async def test_what_a_program_is_not_told_of_its_script_stands_in_the_jobs_story(live: Live) -> None:
    words = ("--container-image=x", "--hint=nomultithread", "--hold", "--wrap=true")
    said = await ok(live, "sbatch", "--parsable", "--as", "lab", "--key", "noted", *words)
    live.acknowledged.append(("lab", "noted"))
    number = said.out.strip()
    assert (number.isdecimal(), said.err) == (True, "")
    story = (await ok(live, "explain", number, "-o", "json")).json["story"]
    assert "--hint is passed over" in story[0]["why"]
    await ok(live, "scancel", number)
    await live.until_ended(live.id_of(number))
    await assert_all_is_well(live)


async def test_what_is_refused_here_is_told_with_what_admission_refuses(live: Live) -> None:
    words = ("submit", "--as", "lab", "--gpus", "40000", "--queue", "no", "--priority", "top")
    unread = ["InvalidField roles[0].resources.gpus", "NoSuchQueue queue", "NoSuchPriorityClass priority_class"]
    assert refusals(await live.command(*words, "--", "true")) == unread
    amounts = ["InvalidField time_limit", "InvalidField resources.cpu"]
    said = await live.command(*words, "--cpu", "x", "--time-limit", "soon", "--", "true")
    assert refusals(said) == [*amounts, *unread]
    script = ("--gpus=3", "--nodes=2", "-p", "no", "-d", "afterok:nobody", "--export=1X=2", "--wrap=srun true")
    found = [f"InvalidField --{name}" for name in ("container-image", "gpus", "dependency")]
    for more in ((), ("--test-only",)):
        said = await live.command("sbatch", "--as", "lab", *more, *script)
        assert refusals(said) == [*found, "InvalidField roles[0].template.env.1X", "NoSuchQueue queue"]
    step = await live.command("srun", "--as", "lab", "--array=1", "-p", "no", environment={"PATH": ""})
    assert refusals(step) == [
        "InvalidField srun",
        "InvalidField srun",
        "InvalidField --container-image",
        "NoSuchQueue queue",
    ]
    await assert_all_is_well(live)


async def test_a_dry_run_says_whether_admission_would_take_the_job_in(live: Live) -> None:
    well = ("submit", "--as", "lab", "--gpus", "1", "--key", "k1", "--dry-run", "--", "true")
    said = await live.command(*well)
    assert (said.code, "would be admitted as job " in said.err) == (0, True), said
    said = await live.command("sbatch", "--as", "lab", "--test-only", "--container-image=x", "--wrap=true")
    assert (said.code, "would be admitted; nothing was stored" in said.err) == (0, True), said
    words = ("sbatch", "--as", "lab", "--test-only", "--container-image=x", "--wrap=true")
    said = await live.command(*words, "--partition=nowhere,night,default")
    assert (said.code, "--partition=nowhere,night,default: it waits in night" in said.err) == (0, True), said
    assert refusals(await live.command(*words, "--partition=nowhere,neither")) == ["NoSuchQueue queue"]
    assert refusals(await live.command(*well[:3], "--gpus", "40000", *well[5:])) == [
        "InvalidField roles[0].resources.gpus"
    ]
    no = await live.command(*well[:3], "--gpus", "8", "--replicas", "500", *well[5:])
    assert refusals(no) == ["ExceedsMaxQuota queues.default.gpu_milli", "Inadmissible roles.worker"]
    await live.until_folded()
    assert not live.state.jobs
    assert not live.state.refused
    await assert_all_is_well(live)


def refusals(said: Said) -> list[str]:
    """Code and field of each."""
    assert said.code == 6, said
    lines = [line for line in said.err.splitlines() if not line.startswith("note: ")]
    return [" ".join(line.split(": ")[1:3]) for line in lines]


async def test_a_job_that_nobody_knows_is_said_wherever_it_is_named(live: Live) -> None:
    done = await live.submit(job("known", seconds=600))
    array = await live.submit(job("many", seconds=600, array=JobArray(tasks="0-3", limit=1)))

    async def is_shown() -> bool:
        return (await live.command("get", array.job_id)).code == 0

    await eventually(is_shown, "the array is in the views")
    listed = {  # exit code of a name that no job has, as with Slurm
        ("squeue", "--noheader", "-o", "%j", "-j"): 1,
        ("sacct", "-n", "-P", "--format", "JobName", "-j"): 0,
    }
    for words, code in listed.items():
        said = await live.command(*words, f"nobody,{done.job_id},{array.job_id}_3,{array.job_id}_9")
        assert (said.code, "known" in said.out.split()) == (code, True), words
        assert {"nobody", f"{array.job_id}_9"} <= {word.strip(":") for word in said.err.split()}, words
        assert (await live.command(*words, "known")).code == 0
    assert (await live.command("scontrol", "show", "job", "nobody")).code == 1
    for words in (("scontrol", "hold"), ("scontrol", "requeue"), ("scancel",)):
        assert (await live.command(*words, "nobody")).code == 3, words
    for words in (("get",), ("explain",), ("logs",), ("cancel",), ("hold",), ("requeue",), ("events", "--job")):
        assert (await live.command(*words, "nobody")).code == 3, words
    said = await live.command("scontrol", "hold", "nobody", done.job_id, "no-one")
    assert (said.code, said.err.count("there is none")) == (3, 2)
    await live.until(lambda state: state.jobs.get(done.job_id).held, "the one that is known is held")
    await ok(live, "scancel", done.job_id, array.job_id)
    await live.until_ended(done.job_id)
    await live.until_ended(array.job_id)
    await assert_all_is_well(live)


@pytest.mark.parametrize(
    ("name", "number"), [("srun", signal.SIGINT), ("srun", signal.SIGTERM), ("salloc", signal.SIGHUP)]
)
async def test_a_signal_to_what_waits_for_its_job_cancels_it(
    live: Live, tmp_path: Path, name: str, number: signal.Signals
) -> None:
    key = f"left-{name}-{number.name.lower()}"
    words = (name, "--as", "lab", "--key", key, "--container-image", "train:1", "--begin", "now+1hour", "true")
    waiting = await started(*words, environment={"TESSERA_HOME": str(live.home)})
    assert waiting.stderr is not None
    said: list[str] = []
    async with asyncio.timeout(SECONDS):
        while not (line := (await waiting.stderr.readline()).decode()).startswith("queued"):
            assert line, said
            said.append(line)
    live.acknowledged.append(("lab", key))
    waiting.send_signal(number)
    _, told = await asyncio.wait_for(waiting.communicate(), SECONDS)
    assert (waiting.returncode, b"Traceback" in told) == (128 + number, False), told
    job_id = id_of_key(key)
    await live.until_ended(job_id)
    assert live.phase(job_id) == "cancelled"


@pytest.mark.parametrize("numbers", [(signal.SIGHUP,), (signal.SIGINT, signal.SIGINT)], ids=["SIGHUP", "twice SIGINT"])
async def test_a_running_srun_takes_its_job_with_it(live: Live, numbers: tuple[signal.Signals, ...]) -> None:
    key = f"taken-{len(numbers)}"
    lasting = "--export=ALL,SIMULATE_SECONDS=600"
    words = ("srun", "--as", "lab", "--key", key, "--container-image", "train:1", lasting, "sleep", "600")
    running = await started(*words, environment={"TESSERA_HOME": str(live.home)})
    assert running.stderr is not None
    assert running.stdout is not None
    assert await asyncio.wait_for(running.stderr.readline(), SECONDS)
    assert await asyncio.wait_for(running.stdout.readline(), SECONDS)  # the log has begun: the job runs
    live.acknowledged.append(("lab", key))
    running.send_signal(numbers[0])
    told = b""
    async with asyncio.timeout(SECONDS):
        while line := await running.stderr.readline():
            told += line
            if b"Ctrl-C again within one second" in line:  # asked anew where the machine took longer than that
                running.send_signal(numbers[1])
        await running.communicate()
    assert running.returncode == 128 + numbers[0], told
    assert (b"Ctrl-C again" in told) == (len(numbers) > 1), told
    job_id = id_of_key(key)
    await live.until_ended(job_id)
    assert live.phase(job_id) == "cancelled"


async def test_sbatch_that_waits_writes_the_logs_into_the_files_that_it_names(live: Live, tmp_path: Path) -> None:
    common = ("sbatch", "--wait", "--as", "lab", "--container-image", "train:1", "--job-name", "swept")
    pattern = tmp_path / "%x-%A_%4a.out"
    said = await ok(live, *common, "--key", "swept", "--array=0-1", "-o", str(pattern), "--wrap=true")
    live.acknowledged.append(("lab", "swept"))
    array = said.out.split()[3]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"swept-{array}_{task:04}.out" for task in (0, 1)]
    for path in tmp_path.iterdir():
        assert path.read_text().endswith("exit code 0\n")
        path.unlink()
    ranks = tmp_path / "%j.%t.log"
    said = await ok(live, *common, "--key", "ranks", "-N", "2", "-e", str(ranks), "--wrap=srun true")
    live.acknowledged.append(("lab", "ranks"))
    job_id = said.out.split()[3]
    assert {path.name: f"rank {rank}" in path.read_text() for rank, path in enumerate(sorted(tmp_path.iterdir()))} == {
        f"{job_id}.{rank}.log": True for rank in (0, 1)
    }
    nowhere = str(tmp_path / "not-there" / "%j.log")
    said = await ok(live, *common, "--key", "nowhere", "-o", nowhere, "--wrap=true")
    live.acknowledged.append(("lab", "nowhere"))
    assert "is not written" in said.err
    await clear_away_pods_that_ended(live)
    await assert_all_is_well(live)


async def test_salloc_holds_its_pods_until_the_shell_ends(live: Live, tmp_path: Path) -> None:
    lasting = "--export=ALL,SIMULATE_SECONDS=600"
    common = ("salloc", "--as", "lab", "--container-image", "train:1", "--gpus=1", lasting)
    refused = await live.command(*common, "--array=0-1")
    assert (refused.code, "--array" in refused.err) == (2, True)

    # The simulated cluster runs no programs; what a shell there would find is tried by a unit test.
    async def play(call: Call) -> None:
        if call.words[-1] in ("USR1", "kill -USR1 1"):
            await call.end()
            return
        await call.write(f"{call.pod} ... {call.words[-1]}\n".encode())
        await call.end(7)

    async with exec_calls(tmp_path, play) as server:
        environment = {"KUBECONFIG": str(server.kubeconfig)}
        await _allocations_hold(live, common, environment)
    await assert_all_is_well(live)


async def _allocations_hold(live: Live, common: tuple[str, ...], environment: dict[str, str]) -> None:
    said = await live.command(*common, "--key", "shell", "--job-name", "shell", "bash", "-l", environment=environment)
    live.acknowledged.append(("lab", "shell"))
    job_id = id_of_key("shell")
    assert {line.split()[-1] for line in said.err.splitlines() if "job allocation" in line} == {live.number_of(job_id)}
    assert said.code == 7, said
    assert said.out == f"{job_id}-1-0 ... -l\n"
    assert [line.split()[1] for line in said.err.splitlines() if "job allocation" in line] == [
        "Pending",
        "Granted",
        "Relinquishing",
    ]
    await live.until_ended(job_id)
    assert live.phase(job_id) == "cancelled"
    step = ("--spread-tasks", "--gpus=2", "--ntasks=2", "--job-name", "step", "srun", "--label", "hostname")
    said = await live.command(*common, "--key", "step", *step, environment=environment)
    live.acknowledged.append(("lab", "step"))
    job_id = id_of_key("step")
    pods = [f"{rank}: {job_id}-1-{rank} ... hostname" for rank in (0, 1)]
    assert (said.code, sorted(said.out.splitlines())) == (7, pods)
    await eventually(lambda: is_shown(live, job_id, "cancelled"), "the views show the end, a moment after the ledger")
    said = await live.command("srun", f"--jobid={job_id}", "hostname", environment=environment)
    assert (said.code, said.err) == (4, f"error: srun: job {job_id} has ended (cancelled)\n")


async def test_an_allocation_whose_client_was_killed_ends_with_its_lease(live: Live, tmp_path: Path) -> None:
    """The pod's program, as its spec has it, runs here in a kubelet's place, where ten seconds last a tenth of one."""
    fast, is_renewed = tmp_path / "fast" / "sleep", asyncio.Event()
    fast.parent.mkdir()
    fast.write_text('#!/bin/sh\n[ "$1" = 10 ] && exec /bin/sleep 0.1\n')
    fast.chmod(0o755)
    job_id = id_of_key("lost")
    name = f"{job_id}-1-0"

    async def play(call: Call) -> None:
        if (call.pod, call.words) == (name, ["/bin/sh", "-c", "kill -USR1 1"]):
            is_renewed.set()
            await call.end()
        else:
            async for _ in call.socket:  # its input ends at once; a shell that ended too would end the allocation
                pass

    wanted = ("--spread-tasks", "--gpus=1", "--export=ALL,SIMULATE_SECONDS=600", "--container-image", "train:1")
    async with exec_calls(tmp_path, play) as server:
        environment = {"TESSERA_HOME": str(live.home), "KUBECONFIG": str(server.kubeconfig)}
        client = await started("salloc", "--as", "lab", "--key", "lost", *wanted, "bash", environment=environment)
        live.acknowledged.append(("lab", "lost"))
        await asyncio.wait_for(is_renewed.wait(), 2 * SECONDS)  # the first is sent as the shell opens
        client.kill()
        await client.wait()
    cluster = live.cluster()
    try:
        pod = await cluster.get_pod("lab", name)
        (main,) = pod["spec"]["containers"]
        words = [word.replace("$$", "$") for word in (*main["command"], *main.get("args", ()))]  # as a kubelet reads it
        waiting = await asyncio.create_subprocess_exec(
            *words, env={"PATH": f"{fast.parent}:/usr/bin:/bin"}, stderr=asyncio.subprocess.PIPE
        )
        _, said = await asyncio.wait_for(waiting.communicate(), SECONDS)
        assert (waiting.returncode, b"was not heard for 300 seconds" in said) == (1, True)
        assert live.phase(job_id) == "running", "until its pod ends nothing else takes the allocation back"
        ended = {**pod["status"]["containerStatuses"][0], "state": {"terminated": {"exitCode": waiting.returncode}}}
        await cluster.patch_pod_status("lab", name, {"status": {"phase": "Failed", "containerStatuses": [ended]}})
        await live.until_ended(job_id)
        assert live.phase(job_id) == "failed", "it is not tried again"
        await eventually(lambda: is_shown(live, job_id, "failed"), "the lists show it, and its devices are free")
        await cluster.delete_pod("lab", name, pod["metadata"]["uid"])
    finally:
        await cluster.close()
    await assert_all_is_well(live)


def id_of_key(key: str) -> str:
    """The id of the job that lab submits under this key."""
    return make_job_id("main", "lab", key)


async def is_shown(live: Live, job_id: str, phase: str) -> bool:
    return bool((await ok(live, "get", job_id, "-o", "json")).json["phase"] == phase)


async def test_an_array_and_the_job_after_it_run_to_their_end(live: Live) -> None:
    sweep = await live.submit(job("sweep", seconds=0.3, array=JobArray(tasks="1-5", limit=2)), held=True)
    array = sweep.job_id
    after = await live.submit(job("reduce", after=(Dependency(condition="afterok", job=array),)))
    assert (await ok(live, "explain", after.job_id, "-o", "json")).json["reason"]["code"] == "DependencyNotMet"
    await ok(live, "release", "sweep")
    await live.until_ended(array, after.job_id)
    assert [live.phase(job_id) for job_id in (array, after.job_id)] == ["succeeded", "succeeded"]
    shown = (await ok(live, "get", array, "-o", "json")).json["array"]
    assert (shown["count"], shown["succeeded"], shown["failed"]) == (5, 5, 0)
    assert (await ok(live, "get", f"{array}_3", "-o", "json")).json["task"] == 3
    assert (await live.command("cancel", f"{array}_9")).code == 3
    rows = (await ok(live, "sacct", "-P", "-n", "-j", array, "--format", "JobID,State,ExitCode")).out.splitlines()
    names = (str(sweep.number), *(f"{sweep.number}_{i}" for i in range(1, 6)))
    assert sorted(rows) == sorted(f"{name}|COMPLETED|0:0" for name in names)
    assert (await ok(live, "get", f"{sweep.number}_3", "-o", "json")).json["task"] == 3
    assert "JobState=COMPLETED" in (await ok(live, "scontrol", "show", "job", after.job_id)).out
    await assert_all_is_well(live)


async def test_a_job_that_has_failed_is_shown_with_its_spec_and_runs_again_with_a_change(live: Live) -> None:
    first = await live.submit(job("once-more", seconds=0.1, exit_code=3, retry={"max_attempts": 1}))
    await live.until_ended(first.job_id)
    shown = (await ok(live, "get", "once-more", "-o", "json")).json
    assert shown["spec"]["roles"][0]["template"]["image"]
    refused = await live.command("rerun", "once-more", "--set", "roles.nobody.replicas=2")
    assert (refused.code, "the spec has no nobody there" in refused.err) == (2, True), refused
    again = (await ok(live, "rerun", "once-more", "--set", "name=twice", "--key", "again-1", "-o", "json")).json
    live.acknowledged.append(("lab", "again-1"))
    assert again["job_id"] != first.job_id
    await live.until_ended(again["job_id"])
    assert (await ok(live, "get", "twice", "-o", "json")).json["phase"] == "failed"
    newest = (await ok(live, "rerun", "twice", "--key", "again-2", "--hold", "-o", "json")).json
    live.acknowledged.append(("lab", "again-2"))
    held = (await ok(live, "get", "twice", "-o", "json")).json
    assert (held["job_id"], held["held"]) == (newest["job_id"], True)
    await ok(live, "cancel", newest["job_id"], "--as", "lab")
    await live.until_ended(newest["job_id"])
    assert (await ok(live, "get", "twice", "-o", "json")).json["job_id"] == newest["job_id"], "the newest of two"


async def test_views_are_shown_once_or_followed_without_a_terminal(live: Live) -> None:
    once = (await ok(live, "top", "--once")).out
    assert once.startswith(f"shard main at {live.platform.gateway_url}, as of ")
    assert "GPUs 0 of 32 in use, 32 wholly free; nodes 4 ready" in once
    following = await started("ls", "--watch", environment={"TESSERA_HOME": str(live.home)})
    assert following.stdout is not None
    try:
        await asyncio.wait_for(following.stdout.readline(), SECONDS)
        done = await live.submit(job("followed", seconds=0.5))
        async with asyncio.timeout(SECONDS):
            while done.job_id not in (await following.stdout.readline()).decode():
                pass
    finally:
        following.send_signal(signal.SIGINT)
        await asyncio.wait_for(following.wait(), SECONDS)
    assert following.returncode == 0
    await live.until_ended(done.job_id)
    await assert_all_is_well(live)


async def test_a_tenant_is_told_of_its_own_job_and_of_no_other_by_name(live: Live) -> None:
    async with filled(live) as filler:
        done = await live.submit(job("guest", gpus=1), tenant="ops")
        await live.until(lambda state: bool((j := state.jobs.get(done.job_id)) and j.reason), "it is said why it waits")
        own = await ok(live, "explain", done.job_id, "--as", "ops")
        assert filler not in own.out
        assert "filler" not in own.out
        assert "32 GPUs held by 1 other run of queue default" in " ".join(own.out.split())
        assert (await live.command("explain", filler, "--as", "ops")).code == 3
        await live.clients["ops"].cancel(done.job_id)
    await assert_all_is_well(live)
