"""Sessions as people type them, on real processes: the cluster is simulated, and calls into its pods are played."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tessera.client.commands.sessions.notebook import BELOW_ITS_PATH
from tessera.domain.entities import Job
from tessera_schemas.config import Defaults
from tessera_schemas.work.arrays import JobArray
from tessera_schemas.work.pod_template import PodGrants
from tests.e2e.live import SMALL, Live, configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.exec_calls import Call, exec_calls

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    body = configuration(defaults=Defaults.model_validate({"sessions": {"ingress": {"host": "{job}.nb.example.com"}}}))
    granted = [one.model_copy(update={"pod_grants": PodGrants(session_ingress=True)}) for one in body.tenants]
    body = body.model_copy(update={"tenants": tuple(granted)})
    async with Live.at(tmp_path_factory.mktemp("sessions"), body, layout=SMALL) as live:
        yield live


async def test_run_it_runs_a_command_in_a_pod_that_goes_with_it(live: Live, tmp_path: Path) -> None:
    """The words of the README: no script, no job file."""

    async def play(call: Call) -> None:
        if call.words[-1] != "kill -USR1 1":
            await call.write(f"{call.pod}: {' '.join(call.words)}\n".encode())
        await call.end(0 if call.words[-1] == "kill -USR1 1" else 7)

    common = ("run", "-it", "train:1", "--as", "lab", "--key", "typed", "--gpus", "2", "-e", "SIMULATE_SECONDS=600")
    async with exec_calls(tmp_path, play) as server:
        said = await live.command(*common, "--", "python", "-q", environment={"KUBECONFIG": str(server.kubeconfig)})
    live.acknowledged.append(("lab", "typed"))
    assert said.code == 7, said
    name = said.out.partition(":")[0]
    assert said.out == f"{name}: python -q\n"
    assert [line.split()[1] for line in said.err.splitlines() if "job allocation" in line] == [
        "Pending",
        "Granted",
        "Relinquishing",
    ]
    job_id = name.removesuffix("-1-0")
    await live.until_ended(job_id)
    assert live.phase(job_id) == "cancelled"
    await eventually(lambda: _is_shown(live, job_id, "cancelled"), "the views show the end, a moment after the ledger")
    shown = (await live.command("get", job_id, "-o", "json")).json
    (role,) = shown["spec"]["roles"]
    assert (shown["name"], role["replicas"], role["resources"]["gpus"]) == ("train", 1, 2)
    assert shown["user"], "limits and shares of a person count sessions, too"
    await assert_all_is_well(live)


async def test_run_says_what_is_wrong_before_it_sends_anything(live: Live) -> None:
    said = await live.command("run", "train:1", "--", "python")
    assert (said.code, "write tessera run -it IMAGE" in said.err) == (2, True), said
    said = await live.command("run", "train:1")
    assert (said.code, "`tessera run -it IMAGE`" in said.err) == (2, True), said
    said = await live.command("run", "-it", "train:1", "--as", "lab", "-e", "NEVER_SET_HERE")
    assert (said.code, "NEVER_SET_HERE" in said.err) == (2, True), said
    said = await live.command("run", "-it", "train:1", "--as", "lab", "--memory", "much")
    assert said.code in (2, 6), said
    assert "memory" in said.err


KUBECTL = """\
#!/bin/sh
echo "$@" >"$0.words"
echo "Forwarding from 127.0.0.1:4567 -> 8888"
echo "Forwarding from [::1]:4567 -> 8888"
"""


async def test_a_notebook_is_reached_by_a_port_forward_and_its_token_is_nowhere_else(
    live: Live, tmp_path: Path
) -> None:
    asked = list[str]()

    async def play(call: Call) -> None:
        asked.append(call.words[0])
        if len(asked) > 1:  # the first look comes before the pod's shell has written it
            await call.write(b"5ec7e7")
        await call.end(0 if len(asked) > 1 else 1)

    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    await _make_claims(live, "home", "data")
    lasting = ("-e", "SIMULATE_SECONDS=600", "--gpus", "1", "--volume", "home:/home/ana", "--volume", "data:/data:ro")
    async with exec_calls(tmp_path, play) as server:
        environment = {"KUBECONFIG": str(server.kubeconfig), "PATH": f"{kubectl.parent}:{os.environ['PATH']}"}
        said = await live.command(
            "notebook", "jupyter:1", "--as", "lab", "--key", "book", *lasting, environment=environment
        )
        live.acknowledged.append(("lab", "book"))
        job_id, url = said.out.removeprefix("job ").split()
        assert (said.code, url) == (0, "http://127.0.0.1:4567/?token=5ec7e7"), said
        assert Path(f"{kubectl}.words").read_text() == f"port-forward -n lab pod/{job_id}-1-0 :8888\n"
        assert live.phase(job_id) == "running", "it outlives the port-forward"
        again = await live.command("notebook", "--as", "lab", "--job", job_id, environment=environment)
        assert (again.code, again.out) == (0, f"{url}\n"), again
    shown = (await live.command("get", job_id, "-o", "json")).json
    template = shown["spec"]["roles"][0]["template"]
    assert [volume["mount_path"] for volume in template["volumes"]] == ["/home/ana", "/data"]
    assert "5ec7e7" not in str(shown)
    assert await _ends_by(live, "cancel", job_id) == "cancelled"


async def test_a_notebook_behind_an_ingress_is_reached_by_its_address_with_its_token(
    live: Live, tmp_path: Path
) -> None:
    async def play(call: Call) -> None:
        await call.write(b"5ec7e7")
        await call.end(0)

    words = ("notebook", "jupyter:1", "--as", "lab", "--key", "open", "-e", "SIMULATE_SECONDS=600", "--ingress")
    async with exec_calls(tmp_path, play) as server:
        environment = {"KUBECONFIG": str(server.kubeconfig)}
        said = await live.command(*words, environment=environment)
        live.acknowledged.append(("lab", "open"))
        job_id, url = said.out.removeprefix("job ").split()
        assert (said.code, url) == (0, f"https://{job_id}.nb.example.com/?token=5ec7e7"), said
        again = await live.command("notebook", "--as", "lab", "--job", job_id, environment=environment)
        assert (again.code, again.out) == (0, f"{url}\n"), again
    shown = (await live.command("get", job_id, "-o", "json")).json
    assert shown["address"] == f"https://{job_id}.nb.example.com/"
    started = shown["spec"]["roles"][0]["template"]["command"]
    assert {"--ServerApp.ip=0.0.0.0", *BELOW_ITS_PATH} < set(started)
    assert "5ec7e7" not in str(shown)
    assert await _ends_by(live, "cancel", job_id) == "cancelled"


async def test_a_workspace_is_any_program_with_a_port_and_has_no_token(live: Live, tmp_path: Path) -> None:
    async def play(call: Call) -> None:
        await call.end(1)

    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    words = ("workspace", "editor:1", "--as", "lab", "--key", "space", "-e", "SIMULATE_SECONDS=600", "--port", "9000")
    async with exec_calls(tmp_path, play) as server:
        environment = {"KUBECONFIG": str(server.kubeconfig), "PATH": f"{kubectl.parent}:{os.environ['PATH']}"}
        said = await live.command(*words, "--", "serve", "--port=9000", environment=environment)
    live.acknowledged.append(("lab", "space"))
    job_id, url = said.out.removeprefix("job ").split()
    assert (said.code, url, f"`tessera workspace --job {job_id}`" in said.err) == (0, "http://127.0.0.1:4567/", True), (
        said
    )
    assert Path(f"{kubectl}.words").read_text() == f"port-forward -n lab pod/{job_id}-1-0 :9000\n"
    shown = (await live.command("get", job_id, "-o", "json")).json
    assert (shown["session"], shown["spec"]["roles"][0]["template"]["command"]) == (
        "workspace",
        ["serve", "--port=9000"],
    )
    assert await _ends_by(live, "cancel", job_id) == "cancelled"


async def test_notebook_says_what_is_wrong_with_its_words(live: Live) -> None:
    for words, why in {
        (): "name an image",
        ("jupyter:1", "--job", "one"): "one of them",
        ("jupyter:1", "--volume", "home"): "write CLAIM:/PATH",
        ("jupyter:1", "--volume", "home:/home:rx"): "write CLAIM:/PATH",
    }.items():
        said = await live.command("notebook", "--as", "lab", *words)
        assert (said.code, why in said.err) == (2, True), said


async def test_who_could_not_reach_a_notebook_is_told_so_before_it_takes_a_gpu(live: Live, tmp_path: Path) -> None:
    words = ("notebook", "jupyter:1", "--as", "lab", "--gpus", "1")
    said = await live.command(*words, environment={"KUBECONFIG": str(tmp_path / "none")})
    assert (said.code, "your own kubeconfig" in said.err) == (2, True), said
    await live.until_folded()
    assert not [job for job in live.state.jobs.values() if job.name == "jupyter"]


async def _make_claims(live: Live, *names: str) -> None:
    cluster = live.cluster()
    try:
        for name in names:
            volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"of-{name}"}, "spec": {}}
            claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}}
            await cluster.create_object("", volume)
            bound = {"spec": {"volumeName": f"of-{name}"}, "status": {"phase": "Bound"}}
            await cluster.create_object("lab", claim | bound)
    finally:
        await cluster.close()


async def _ends_by(live: Live, *words: str) -> str:
    assert (await live.command(*words, "--as", "lab")).code == 0
    await live.until_ended(words[-1])
    return live.phase(words[-1])


async def test_a_paused_job_gives_back_what_it_holds_and_goes_on_in_line_when_it_is_resumed(live: Live) -> None:
    session = (await live.submit(job("session", gpus=8, replicas=4, seconds=600))).job_id
    await live.until_phase(session, "running")
    said = await live.command("pause", "session", "--as", "lab")
    assert (said.code, "paused" in said.out) == (0, True), said
    await live.until(lambda state: not state.runs, "its run is gone")
    assert (live.phase(session), _found(live, session).held) == ("queued", True)
    other = (await live.submit(job("other", gpus=8, replicas=4, seconds=600))).job_id
    await live.until_phase(other, "running")  # all GPUs of the cluster, and of the quota, are free again

    await live.until_shown()
    said = await live.command("resume", session, "--as", "lab", "--priority", "low")
    assert (said.code, "waits in line in class low" in said.out) == (0, True), said
    await live.until_folded()
    assert (_found(live, session).held, _found(live, session).priority_class) == (False, "low")
    said = await live.command("resume", session, "--as", "lab")
    assert (said.code, "is not paused" in said.out) == (0, True), said
    await live.clients["lab"].cancel(other)
    await live.until_phase(session, "running")
    assert _found(live, session).attempt == 2

    said = await live.command("scontrol", "requeuehold", session, "--as", "lab")
    assert said.code == 0, said
    await live.until(lambda state: not state.runs and _found(live, session).held, "Slurm's word pauses as well")
    await live.clients["lab"].cancel(session)
    await live.until_idle()
    await assert_all_is_well(live)


async def test_an_array_is_not_paused_since_its_tasks_would_start_again(live: Live) -> None:
    array = (await live.submit(job("sweep", seconds=600, array=JobArray(tasks="1-2")))).job_id
    await live.until_shown()
    said = await live.command("pause", array, "--as", "lab")
    assert (said.code, "name a task" in said.err) == (2, True), said
    await live.clients["lab"].cancel(array)
    await live.until_idle()


def _found(live: Live, job_id: str) -> Job:
    (found,) = live.state.jobs.found((job_id,))
    return found


async def _is_shown(live: Live, job_id: str, phase: str) -> bool:
    return bool((await live.command("get", job_id, "-o", "json")).json["phase"] == phase)
