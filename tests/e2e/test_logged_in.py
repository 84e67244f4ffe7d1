"""The command with a tenant's token and nothing else: what it reads and sends by HTTP, on real servers."""

import asyncio
import doctest
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio
from nats.aio.msg import Msg

from tessera.client import Failure, Tessera
from tessera.client.connect.locating import find
from tessera_local.free_port import free_port
from tests.e2e.lasting import finish, lasting
from tests.e2e.live import SECONDS, SMALL, Live, Said, configuration, eventually, forked, job, started, tessera

PAGE = Path(__file__).parents[2] / "docs/sdk.md"
pytestmark = pytest.mark.asyncio(loop_scope="module")


class LoggedIn:
    """A tenant that knows the gateway's address and its token, in a home directory of its own."""

    def __init__(self, live: Live, folder: Path) -> None:
        self._live, self.environment = live, {"XDG_CONFIG_HOME": str(folder)}

    async def run(self, *words: str) -> Said:
        return await tessera(*words, environment=self.environment)

    @asynccontextmanager
    async def following(self, *words: str) -> AsyncIterator[asyncio.Task[Said]]:
        """A command that has printed its first line and goes on; all that it says by its end."""
        process = await started(*words, environment=self.environment)
        assert process.stdout is not None
        first = await asyncio.wait_for(process.stdout.readline(), SECONDS)
        assert first, (await process.communicate())[1].decode()

        async def end() -> Said:
            out, err = await process.communicate()
            assert process.returncode is not None
            return Said(process.returncode, (first + out).decode(), err.decode())

        task = asyncio.create_task(end())
        try:
            yield task
        finally:
            if process.returncode is None:
                process.kill()
            await task

    async def read(self, *words: str) -> Said:
        """Run a command that finds in the views what it asks for, however soon it asks."""
        return await forked(*words, environment=self.environment)

    async def log_in(self, tenant: str, folder: Path, at: str = "", user: str = "") -> None:
        """At the platform's gateway, or at the one whose URL is `at`; with a user, by a token that is bound to it."""
        bound = ("--user", user) if user else ()
        (folder / "token").write_text((await self._live.command("token", "new", tenant, *bound)).out)

        async def taken() -> bool:
            url = at or self._live.platform.gateway_url
            return (await self.run("login", url, "--token-file", str(folder / "token"))).code == 0

        await eventually(taken, "the gateway takes the new token")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    async with Live.at(tmp_path_factory.mktemp("platform"), configuration(), layout=SMALL) as live:
        yield live


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab(live: Live, tmp_path_factory: pytest.TempPathFactory) -> LoggedIn:
    folder = tmp_path_factory.mktemp("lab")
    made = LoggedIn(live, folder)
    await made.log_in("lab", folder)
    return made


def written(folder: Path, name: str, seconds: float = 0.2, **more: Any) -> str:
    file = folder / f"{name}.yaml"
    file.write_text(job(name, seconds=seconds, **more).model_dump_json(exclude_defaults=True))
    return str(file)


async def test_every_reading_command_answers_a_tenants_token(live: Live, lab: LoggedIn, tmp_path: Path) -> None:
    sent = await lab.run("submit", "-f", written(tmp_path, "by-http"), "--key", "in-1", "--wait", "--timeout", "60")
    assert sent.code == 0, sent.err
    assert "succeeded" in sent.out
    live.acknowledged.append(("lab", "in-1"))
    expected = {
        ("ls",): "by-http",
        ("get", "by-http"): "in-1",
        ("explain", "by-http"): "succeeded",
        ("top", "--once"): "default",
        ("queue", "list"): "default",
        ("queue", "show", "default"): "jobs wait",
        ("quota",): "gpus",
        ("nodes",): "gpu-0",
        ("templates",): "TEMPLATE",
        ("events", "--job", "by-http"): "job.released",
        ("squeue", "--all"): "by-http",
        ("sinfo",): "default",
        ("slots",): "LARGEST GANG",
        ("ls", "-o", "jsonpath={.items[*].name}"): "by-http",
        ("get", "by-http", "-o", "name"): sent.out.split()[1],
        ("get", "by-http", "-o", "yaml"): "image:",
    }
    for words, text in expected.items():
        said = await lab.read(*words)
        assert (said.code, said.err) == (0, ""), words
        assert text in said.out, words
    story = await lab.run("explain", "by-http", "-o", "json")
    assert [line["event"] for line in json.loads(story.out)["story"]][-1] == "job.released"


async def test_a_shell_completes_the_names_of_jobs(live: Live, lab: LoggedIn) -> None:
    sent = await live.submit(job("completes", seconds=600), "lab")

    async def is_listed() -> bool:
        return "completes" in (await lab.run("ls")).out  # lists may be a second old

    await eventually(is_listed, "the list has the job")
    for words in (
        *("cancel compl", "scancel compl", "scancel other compl", "squeue -j compl", "squeue --jobs other,compl"),
        *("sacct -j compl", "scontrol show job compl", "scontrol hold compl", "events --job compl"),
    ):
        line = f"tessera {words}"
        for shell, asked in {
            "complete_bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)},
            "complete_zsh": {"_TYPER_COMPLETE_ARGS": line},
            "complete_fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        }.items():
            said = await forked(environment={**lab.environment, "_TESSERA_COMPLETE": shell, **asked})
            assert "completes" in said.out, (shell, words, said)
            assert ("other,completes" in said.out) == ("other," in words), (shell, words, said)
    await live.command("cancel", sent.job_id, "--as", "lab")
    await live.until_ended(sent.job_id)


async def test_a_scripts_account_is_the_tokens_tenant_or_is_refused(live: Live, lab: LoggedIn) -> None:
    words = ("sbatch", "--parsable", "--container-image=x", "--wrap=true", "--key=account-1")
    sent = await lab.run(*words, "--account=lab")
    assert sent.code == 0, sent
    live.acknowledged.append(("lab", "account-1"))
    other = await lab.run(*words, "--account=sales")
    assert (other.code, "the token in use is of lab" in other.err) == (2, True), other
    await live.until_folded()
    await live.until_ended(live.id_of(sent.out.strip()))


async def test_a_token_that_is_bound_to_a_user_submits_lists_and_cancels_as_that_user(
    live: Live, lab: LoggedIn, tmp_path: Path
) -> None:
    ana = LoggedIn(live, tmp_path)
    await ana.log_in("lab", tmp_path, user="ana")
    listed = json.loads((await live.command("token", "list", "-o", "json")).out)
    assert [row["tenant"] for row in listed["items"] if row["user"] == "ana"] == ["lab"]

    named = written(tmp_path, "bobs", seconds=600, user="bob")
    other = await ana.run("submit", "-f", named, "--key", "bobs-1")
    assert (other.code, "bound to user ana; leave user out" in other.err) == (6, True), other
    assert (await lab.run("submit", "-f", named, "--key", "bobs-1")).code == 0
    script = ("--parsable", "--hold", "--container-image=x", "--wrap=true", "--key=anas-1")
    assert (await ana.run("sbatch", *script)).code == 0  # held: a simulated pod ends after a moment, sleep or no sleep
    again = await ana.run("rerun", "bobs", "--key", "anas-2")
    assert again.code == 0, again
    live.acknowledged += [("lab", "bobs-1"), ("lab", "anas-1"), ("lab", "anas-2")]
    await live.until_folded()

    rows = json.loads((await ana.read("squeue", "--me", "-o", "json")).out)["items"]
    assert sorted((row["name"], row["user"]) for row in rows) == [("bobs", "ana"), ("wrap", "ana")]
    assert (await ana.run("scancel", "--me")).code == 0
    for row in rows:
        await live.until_ended(row["job_id"])
    (left,) = json.loads((await lab.read("squeue", "-u", "bob", "-o", "json")).out)["items"]
    assert left["user"] == "bob"
    assert (await lab.run("scancel", left["job_id"])).code == 0
    await live.until_ended(left["job_id"])


async def test_who_names_the_tenant_of_a_token_is_heard_and_who_names_another_is_refused(
    live: Live, lab: LoggedIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, "named")
    sent = await lab.run("submit", "-f", file, "--key", "named-1", "--as", "lab", "-o", "json")
    assert sent.code == 0, sent
    other = await lab.run("submit", "-f", file, "--key", "named-1", "--as", "sales")
    assert (other.code, "the token in use is of lab" in other.err) == (2, True), other
    for name, value in lab.environment.items():
        monkeypatch.setenv(name, value)
    async with Tessera.connect("lab") as by_token:
        again = await by_token.submit(job("named", seconds=0.2), "named-1")
    assert again.job_id == json.loads(sent.out)["job_id"]
    with pytest.raises(Failure, match="tenant sales: the token in use is of lab"):
        async with Tessera.connect("sales"):
            pass
    live.acknowledged.append(("lab", "named-1"))
    await live.until_ended(again.job_id)


async def test_a_tenant_holds_releases_and_cancels_its_job_by_name(live: Live, lab: LoggedIn, tmp_path: Path) -> None:
    file = written(tmp_path, "orders", seconds=600)
    assert (await lab.run("submit", "-f", file, "--key", "in-2", "--hold", "-o", "json")).code == 0
    live.acknowledged.append(("lab", "in-2"))
    assert "is held" in (await lab.run("hold", "orders")).out
    unknown = await lab.run("prio", "orders", "royal")
    assert (unknown.code, "NoSuchPriorityClass" in unknown.err) == (6, True), unknown
    found = json.loads((await lab.run("get", "orders", "-o", "json")).out)
    again = await lab.run("prio", "orders", found["priority_class"])
    assert f"has priority class {found['priority_class']} now" in again.out, again
    found = json.loads((await lab.run("get", "orders", "-o", "json")).out)
    assert found["held"] is True
    assert "is released" in (await lab.run("release", "orders")).out
    assert "is not held; nothing changes" in (await lab.run("release", "orders")).out
    assert "cancellation is under way" in (await lab.run("cancel", "orders")).out

    async def ended() -> bool:
        return bool(json.loads((await lab.run("get", "orders", "-o", "json")).out)["phase"] == "cancelled")

    await eventually(ended, "the job is cancelled")
    again = await lab.run("cancel", "orders")
    assert again.code == 4
    assert "has ended (cancelled)" in again.err


async def test_the_examples_of_the_page_on_python_are_true(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    token = (await live.command("token", "new", "ops")).out.strip()
    login = {"TESSERA_API": live.platform.gateway_url, "TESSERA_TOKEN": token}
    for name in ("TESSERA_HOME", "TESSERA_NATS_URL", "TESSERA_CREDENTIALS_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in login.items():
        monkeypatch.setenv(name, value)

    async def is_let_in() -> bool:
        return (await tessera("ls", environment=login)).code == 0

    await eventually(is_let_in, "the gateway takes the new token")
    # A loop runs in this thread, as in a notebook; `asyncio.run` of the page needs one without.
    failed, tried = await asyncio.to_thread(doctest.testfile, str(PAGE), module_relative=False)
    assert (failed, tried >= 15) == (0, True)
    for name in ("hello-1", "hello-2", "sweep-1-0", "sweep-1-1"):
        live.acknowledged.append(("ops", name))


async def test_another_tenants_job_does_not_exist_and_its_reasons_are_all_told(
    live: Live, lab: LoggedIn, tmp_path: Path
) -> None:
    ops = LoggedIn(live, tmp_path)
    await ops.log_in("ops", tmp_path)
    assert "by-http" not in (await ops.run("ls")).out
    assert (await ops.run("get", "by-http")).code == 3
    refused = await ops.run("submit", "--queue", "nowhere", "--gpus", "1", "--", "true")
    assert refused.code == 6
    assert "refused: NoSuchQueue" in refused.err
    assert (await ops.run("preempt", "by-http", "--dry-run")).code in (2, 3)


def lines(said: Said) -> list[str]:
    """The text of each line, without its time."""
    assert said.code == 0, said.err
    return [line.partition(" ")[2] for line in said.out.splitlines()]


async def test_logs_are_read_by_token_and_by_the_operator(live: Live, lab: LoggedIn) -> None:
    sent = await live.submit(job("writes", replicas=2, seconds=3, ttl_seconds_after_finished=120), "lab")
    followed = lines(await lab.run("logs", "writes", "-f"))
    assert (followed[0], followed[-1]) == ("simulated program, rank 0: 3 s of work", "exit code 0")
    assert lines(await live.command("logs", "writes")) == followed
    assert lines(await live.command("logs", sent.job_id, "--rank", "1", "--tail", "1")) == ["exit code 0"]
    assert lines(await lab.run("logs", "writes", "--rank", "1"))[0] == "simulated program, rank 1: 3 s of work"
    for run in (lab.run, live.command):
        said = await run("logs", "writes", "--rank", "2")
        assert (said.code != 0, "the job has no such pod; those of its gang are 0 to 1" in said.err) == (True, True)
        said = await run("logs", "writes", "--attempt", "2")
        assert (said.code, "there was no such attempt" in said.err) == (4, True), said


async def test_a_log_that_is_followed_by_token_outlives_the_gateway(live: Live, lab: LoggedIn) -> None:
    sent = await live.submit(lasting("outlives", ttl_seconds_after_finished=120), "lab")
    await live.until_phase(sent.job_id, "running")
    async with lab.following("logs", sent.job_id, "-f") as following:
        async with live.down("gateway"):
            await asyncio.sleep(1)
        await finish(live, sent.job_id)
        said = await asyncio.wait_for(following, SECONDS)
    assert said.err.count("it goes on from where it stood") == 1, said
    await live.until_ready("gateway")
    assert lines(said) == lines(await lab.run("logs", sent.job_id))


async def test_the_log_of_a_users_own_pod_is_read_until_its_end_and_then_it_is_said_who_has_it(
    live: Live, lab: LoggedIn
) -> None:
    container = {"name": "main", "image": "busybox:1.37", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
    meta = {"name": "own-pod", "namespace": "lab", "annotations": {"tessera.io/simulate-seconds": "2"}}
    spec = {"schedulerName": "tessera", "restartPolicy": "Never", "containers": [container]}
    cluster = live.cluster()
    try:
        await cluster.create_pod("lab", {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    finally:
        await cluster.close()

    async def is_adopted() -> bool:
        return (await live.command("get", "own-pod")).code == 0

    await eventually(is_adopted, "the pod is a job")
    followed = lines(await live.command("logs", "own-pod", "-f"))
    assert (followed[0], followed[-1]) == ("simulated program, rank 0: 2 s of work", "exit code 0")

    async def has_ended() -> bool:
        return "succeeded" in (await live.command("get", "own-pod")).out

    await eventually(has_ended, "the job has ended")
    for run in (lab.run, live.command):
        said = await run("logs", "own-pod")
        assert (said.code, "kubectl get pods -n lab" in said.err) == (4, True), said


async def test_a_tenants_credential_for_nats_alone_reads_its_jobs_and_no_others(live: Live, tmp_path: Path) -> None:
    mine = await live.submit(job("by-nats", seconds=0.2, ttl_seconds_after_finished=120), "lab")
    theirs = await live.submit(job("not-mine"), "ops")
    await live.until_ended(mine.job_id)
    held = live.platform.credentials.file("lab").read_text()
    (tmp_path / "lab.json").write_text(held)
    environment = {
        "TESSERA_NATS_URL": live.platform.nats.url,
        "TESSERA_CREDENTIALS_FILE": str(tmp_path / "lab.json"),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    expected = {
        ("ls",): "by-nats",
        ("get", "by-nats"): mine.job_id,
        ("explain", "by-nats"): "succeeded",
        ("top", "--once"): "default",
        ("queue", "list"): "default",
        ("nodes",): "gpu-0",
        ("templates",): "TEMPLATE",
        ("events", "--job", "by-nats"): "job.released",
        ("logs", "by-nats"): "exit code 0",
        ("squeue", "--me", "--all"): "by-nats",
    }
    for words, text in expected.items():
        said = await forked(*words, environment=environment)
        assert (said.code, text in said.out, "not-mine" in said.out) == (0, True, False), (words, said)
    assert (await forked("get", theirs.job_id, environment=environment)).code == 3
    asked = {"name": "sent", "queue": "default", "cpu": 1, "memory": "1Gi", "image": "i"}
    (tmp_path / "sent.yaml").write_text(json.dumps(asked))
    sent = await tessera("submit", "-f", str(tmp_path / "sent.yaml"), "--key", "nats-1", environment=environment)
    assert sent.code == 0, sent
    live.acknowledged.append(("lab", "nats-1"))
    revoked = json.loads(held)
    revoked["nats"]["password"] = "taken-back"
    (tmp_path / "lab.json").write_text(json.dumps(revoked))
    said = await forked("ls", environment=environment)
    assert (said.code, said.out) == (5, ""), said
    await live.command("cancel", theirs.job_id, "--as", "ops")


async def test_a_tenant_gets_no_token_of_another(live: Live) -> None:
    place = find(live.home)
    errors, heard = list[str](), list[bytes]()

    async def note(error: Exception) -> None:
        errors.append(str(error))

    login = place.identity("lab").nats
    client = await nats.connect(place.nats_url, user=login.user, password=login.password, error_cb=note)
    try:

        async def take(message: Msg) -> None:
            heard.append(message.data)

        await client.subscribe("_INBOX.lab.>", cb=take)
        await client.subscribe("_INBOX.ops.>", cb=take)
        question = "ab" * 16
        await client.publish("login.main.ops", question.encode())
        await client.publish("login.main.lab", b"_INBOX.ops.login.x", reply="_INBOX.ops.login.x")
        await client.publish("login.main.lab", question.encode(), reply=f"_INBOX.ops.login.{question}")
        await eventually(lambda: bool(heard), "the one question of its own is answered")
        await asyncio.sleep(0.5)
    finally:
        await client.close()
    assert [json.loads(data)["token"].split(".")[1] for data in heard] == ["lab"]
    assert any("ops" in error for error in errors)


async def test_why_there_is_no_log_is_said_in_a_sentence(live: Live, lab: LoggedIn) -> None:
    of_others = await live.submit(job("of-others", seconds=600), "ops")
    blocks = await live.submit(job("blocks", gpus=8, replicas=4, seconds=600), "lab")
    for run in (lab.run, live.command):
        said = await run("logs", "blocks")
        assert (said.code, "has not started yet (queued" in said.err) == (4, True), said.err
    said = await lab.run("logs", of_others.job_id)
    assert said.code == 3
    for who, one in (("lab", blocks), ("ops", of_others)):
        await live.command("cancel", one.job_id, "--as", who)
        await live.until_ended(one.job_id)
    for run in (lab.run, live.command):
        said = await run("logs", blocks.job_id, "-f")
        assert (said.code, "it has ended without a run (cancelled)" in said.err) == (4, True), said.err


async def test_a_gone_pods_log_comes_from_the_store_and_without_one_it_is_said_why_there_is_none(
    live: Live, lab: LoggedIn, tmp_path: Path
) -> None:
    gone = await live.submit(job("gone", seconds=0.5, ttl_seconds_after_finished=10), "lab")
    await live.until_ended(gone.job_id)

    port = free_port()
    settings = {"TESSERA_API_PORT": str(port), "TESSERA_TOKENS_FILE": str(live.platform.tokens_file)}
    async with live.another("gateway", **settings) as keeps_none:
        await keeps_none.until_ready()
        elsewhere = LoggedIn(live, tmp_path)
        await elsewhere.log_in("lab", tmp_path, f"http://127.0.0.1:{port}")

        async def is_gone() -> bool:
            said = await elsewhere.run("logs", "gone")
            is_told = "NoLogs: job_id: there is no log to show (its pod is gone" in said.err
            return said.code == 4 and is_told and "stores no logs (setting logs_store)" in said.err

        await eventually(is_gone, "the pod is gone, and the answer says so")

    async def is_stored() -> bool:
        said = await lab.run("logs", "gone")
        return said.code == 0 and said.out.endswith("exit code 0\n")

    await eventually(is_stored, "the gateway answers from its store")
    operators = await live.command(
        "logs", "gone", "--attempt", "1"
    )  # from the cluster itself, else the gateway's store
    assert (operators.code, operators.out.endswith("exit code 0\n")) == (0, True), operators


async def test_a_log_whose_token_is_taken_back_ends_with_an_error(live: Live, lab: LoggedIn, tmp_path: Path) -> None:
    other = LoggedIn(live, tmp_path)
    await other.log_in("lab", tmp_path)
    sent = await live.submit(job("goes-on", seconds=600), "lab")
    await live.until_phase(sent.job_id, "running")
    async with other.following("logs", "goes-on", "--follow") as reading:
        token = (tmp_path / "token").read_text().strip()
        assert (await live.command("token", "revoke", token.split("_")[1])).code == 0
        said = await asyncio.wait_for(reading, SECONDS)
    assert (said.code, "the token is not accepted" in said.err) == (2, True), said.err
    assert "simulated program" in said.out
    await live.command("cancel", sent.job_id, "--as", "lab")
    await live.until_ended(sent.job_id)
