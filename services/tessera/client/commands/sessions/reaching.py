"""
A session with a port, submitted and reached by a port-forward with the caller's own right, or by an Ingress.

No service of Tessera has a part in it: kubectl forwards to the pod's loopback address, which no other pod reaches.
"""

import asyncio
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress

from tessera.client.commands.context import AccessOptions
from tessera.client.commands.jobs.logs import until_started
from tessera.client.commands.jobs.submit import told_what_goes_on
from tessera.client.commands.sessions import idle_watch
from tessera.client.connect.shard_views import ENDED
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending import submitting
from tessera.client.slurm.in_pods import OUTPUT, PodExec, pods_of
from tessera.client.views.rendering import notify
from tessera.kernel.clock import SystemClock
from tessera_schemas.base import Json, run_id
from tessera_schemas.cluster.labels import pod_name
from tessera_schemas.views import JobView

TOKEN_FILE = "/tmp/tessera-notebook-token"  # noqa: S105, S108 - a path in the pod's own container
TOKEN_SECONDS, TOKEN_POLL_SECONDS = 60.0, 0.5
"""How long a pod that runs may take to write its token: its shell does so first of all."""
WARNING_POLL_SECONDS = 60.0
FORWARDS = re.compile(r"Forwarding from 127\.0\.0\.1:([0-9]+) ")
WORKSPACE = "workspace"


async def submit_and_reach(at: AccessOptions, asked: Json, key: str | None, port: int) -> Exit | None:
    """Submit a session, and forward a port to it once it runs. Raises Refused or Failure."""
    async with pods_of(""):
        pass  # who could not reach the pod is told so before it takes a GPU
    async with submitting.submitted(at.find(), at.identity, asked, key) as sent:
        submitted = sent.done.job_id
        print(f"job {submitted}", flush=True)
    with told_what_goes_on(submitted):
        return await reach(at, submitted, port)


def volumes_of(said: Sequence[str]) -> list[Json]:
    """Volumes of claims, as `work:/workspace` or `data:/data:ro`. Raises Failure."""
    found = list[Json]()
    for text in said:
        claim, _, rest = text.partition(":")
        path, _, mode = rest.partition(":")
        if not claim or not path.startswith("/") or mode not in ("", "ro", "rw"):
            raise Failure(Exit.USAGE, f"--volume {text}: write CLAIM:/PATH or CLAIM:/PATH:ro")
        found.append({"kind": "claim", "name": claim, "mount_path": path, "read_only": mode == "ro"})
    return found


async def reach(at: AccessOptions, named: str, port: int) -> Exit | None:
    """Forward a local port to the job's pod, once it runs, until the forward ends. Raises Failure."""
    found = await until_started(at.find(), at.identity, named, follow=True)
    if found.phase in ENDED:
        why = f": {found.reason.sentence()}" if found.reason else ""
        raise Failure(Exit.CONFLICT, f"session: job {found.job_id} has {found.phase}{why}")
    if found.owner:
        raise Failure(Exit.USAGE, f"session: the pods of {found.owner} are yours: kubectl port-forward")
    pod = pod_name(run_id(found.job_id, found.attempt), 0)
    if found.session == WORKSPACE:
        return await _forward(found, pod, port, "")
    async with pods_of(found.tenant) as pods:
        token = await _token_of(pods, pod)
        telling = asyncio.create_task(tell_warnings(pods, pod))
        try:
            return await _forward(found, pod, port, token)
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)


async def tell_warnings(pods: PodExec, pod: str, every: float = WARNING_POLL_SECONDS) -> None:
    """Tell each warning that the pod leaves before it stops for idleness."""
    told = ""
    while True:
        await SystemClock().sleep(every)
        with suppress(Failure):
            warning = await _read(pods, pod, idle_watch.WARNING_FILE)
            if warning and warning != told:
                notify(f"notebook: {warning}")
            told = warning


async def _token_of(pods: PodExec, pod: str) -> str:
    """The token that the pod has made. Raises Failure for a pod that has none, as one of another kind."""
    clock = SystemClock()
    until = clock.monotonic() + TOKEN_SECONDS
    while not (token := await _read(pods, pod, TOKEN_FILE)):
        if clock.monotonic() >= until:
            raise Failure(Exit.CONFLICT, f"notebook: {pod} has made no token; is it one of `tessera notebook`?")
        await clock.sleep(TOKEN_POLL_SECONDS)
    return token


async def _read(pods: PodExec, pod: str, path: str) -> str:
    """Text of a file of the pod; "" where it is not there."""
    written = bytearray()

    def take(stream: int, piece: bytes) -> None:
        if stream == OUTPUT:
            written.extend(piece)

    return "" if await pods.run(pod, ("cat", path), take) else written.decode(errors="replace").strip()


async def _forward(job: JobView, pod: str, port: int, token: str) -> Exit | None:
    """
    Run kubectl, which knows the caller's kubeconfig; where it is not there, say what to run where it is.

    Of a session behind an Ingress its address is all there is to say.
    """
    if job.address:
        print(_with_token(job.address, token), flush=True)
        return None
    words = ("kubectl", "port-forward", "-n", job.tenant, f"pod/{pod}")
    if shutil.which(words[0]) is None:
        print(f"{' '.join(words)} {port}:{port}\n{_url(port, token)}", flush=True)
        return None
    running = await asyncio.create_subprocess_exec(*words, f":{port}", stdout=asyncio.subprocess.PIPE)
    try:
        assert running.stdout is not None
        async for line in running.stdout:
            if match := FORWARDS.match(line.decode(errors="replace")):
                print(_url(int(match[1]), token), flush=True)
        code = await running.wait()
    finally:
        if running.returncode is None:
            running.terminate()
            await running.wait()
    word = job.session if job.session == WORKSPACE else "notebook"
    notify(f"{word}: the port-forward to {pod} has ended; `tessera {word} --job {job.job_id}` reaches it again")
    return Exit.UNAVAILABLE if code else None


def _url(port: int, token: str) -> str:
    return _with_token(f"http://127.0.0.1:{port}/", token)


def _with_token(url: str, token: str) -> str:
    return url + (f"?token={token}" if token else "")
