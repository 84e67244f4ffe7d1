"""
Jobs in real pods: a real kubelet ends them, `exec` calls reach them, their logs come from their node.

Who types the commands has a token of the tenant, and a kubeconfig with the rights that docs/slurm.md names, no more.
"""

import asyncio
import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tessera.client.outcomes import Exit
from tessera.domain.state import State
from tessera.testkit.checker import PodChange
from tessera_schemas.config import Policy
from tessera_schemas.job import CheckpointPolicy, JobSpec, Retry, Role, Session, Template
from tessera_schemas.shard.services import SEPARATE
from tessera_schemas.work.pod_template import IDLE_WARNING_FILE
from tests.containers import names
from tests.containers.node import (
    ADDRESS,
    HAS_MPI,
    IMAGE,
    MPI_IMAGE,
    NAME,
    STEPS_IMAGE,
    STEPS_SOURCES,
    Node,
    NoNode,
    api_flags,
    bridge,
    mpi_image,
)
from tests.e2e.elastic_suite import has_pods
from tests.e2e.live import SECONDS, Said, configuration, eventually, job, started
from tests.kubernetes import binaries, deployed
from tests.kubernetes.conftest import running
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on

pytestmark = pytest.mark.asyncio(loop_scope="module")
needs_steps = pytest.mark.skipif(not STEPS_SOURCES.exists(), reason="the step runner's sources are not here")
PROBED_SECONDS = 120.0
"""Three probes in a row, ten seconds apart, and as many again on a machine that is busy."""
GPUS, PERSON = 2, "person"  # each pod asks for a CPU (-O: whatever its tasks), and the machine may have no more
RIGHTS = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: person, namespace: lab}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: person, namespace: lab}
rules:
- {apiGroups: [""], resources: [pods/exec], verbs: [get, create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: person, namespace: lab}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: person}
subjects: [{kind: ServiceAccount, name: person, namespace: lab}]
"""
GANG = """\
#!/bin/sh
#SBATCH --ntasks=2 --gpus-per-task=1 --job-name=gang --spread-tasks
echo all $SLURM_PROCID of $SLURM_NTASKS
until [ -e /tmp/go ]; do sleep 0.1; done
srun -n1 echo first
srun echo every
"""
NODES = """\
#!/bin/sh
#SBATCH --nodes=2 --ntasks-per-node=2 --gpus-per-node=1 -O --job-name=nodes
export MASTER=$(hostname)
echo once on $SLURM_NNODES
srun sh -c 'echo $SLURM_PROCID of $SLURM_NTASKS on $(hostname) to $MASTER'
exit 3
"""
STEPS = """\
#!/bin/sh
#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=1 -O --job-name=steps --requeue
[ "$TESSERA_ATTEMPT" = 1 ] || { echo again; srun -n8 sh -c 'echo $SLURM_PROCID'; exit; }
export MASTER_ADDR=$(hostname) MASTER_PORT=4711
second=$(scontrol show hostnames | tail -n 1)
srun -n8 -w $second sh -c 'echo all $SLURM_PROCID $(hostname)' | sort
srun -N1 -n1 --exact -x $second sh -c 'nc -l -p $MASTER_PORT' &
srun -N1 -n1 --exact -w $second \
  sh -c 'until echo met by $(hostname) | nc $MASTER_ADDR $MASTER_PORT; do sleep 0.1; done' &
wait
srun -n1 sh -c 'echo part $SLURM_PROCID one' : -n3 sh -c 'echo part $SLURM_PROCID other' | sort
: > /tmp/up
srun -n8 sh -c 'echo up; exec sleep 1001' > /tmp/up 2> /tmp/errors &
until [ $(grep -c up /tmp/up) = 8 ]; do sleep 0.1; done
kill $!; wait $!; echo killed $?
srun -n2 --ntasks-per-node=1 sh -c 'echo left $(pidof sleep | wc -w)'
srun -n2 --ntasks-per-node=1 sh -c 'trap "" TERM; echo in the middle; sleep 1002'
sleep 1003
"""
ALLREDUCE = f"""\
#!/bin/sh
#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=1 -O --job-name=mpi --container-image={MPI_IMAGE}
mpirun.openmpi --allow-run-as-root --mca btl self,tcp sh -c 'allreduce.openmpi; hostname'
mpirun.mpich -n 8 sh -c 'hostname; exec allreduce.mpich' 2> /dev/null |
  grep -E '^[^ ]+-1-.$|of 8' | sed 's/^. of/MPICH &/'
"""
"""MPICH's leaves without MPI_Finalize, and is told of it: in Debian 12 that hangs over TCP at times (docs/steps.md)."""
STEP_SAVER = """\
[ "$TESSERA_ATTEMPT" = 1 ] || { srun -n2 echo again; exit; }
trap 'echo script; wait; exit' TERM
srun -n2 sh -c 'trap "echo saved; exit 0" TERM; echo begun; until [ -s /etc/tessera/evict-at ]; do sleep 0.1; done
  echo noticed; while :; do sleep 0.1; done' 2> /tmp/errors &
wait
"""
SAVER = """\
[ "$TESSERA_ATTEMPT" = 1 ] || { echo again, from $TESSERA_CHECKPOINT_PATH; exit; }
trap 'echo saving; until [ -e /tmp/saved ]; do sleep 0.1; done; echo saved; exit' TERM
echo begun
until [ -s /etc/tessera/evict-at ]; do sleep 0.1; done
echo noticed
while :; do sleep 0.1; done
"""
ELASTIC = """\
trap 'echo saving; sleep 0.5; echo the last line; exit' TERM
echo rank $TESSERA_RANK
while :; do sleep 0.1; done
"""
WARNED = f"""\
until [ -e /tmp/warn ]; do sleep 0.1; done
echo it pauses soon > {IDLE_WARNING_FILE}
until [ -e /tmp/use ]; do sleep 0.1; done
: > {IDLE_WARNING_FILE}
until [ -e /tmp/leave ]; do sleep 0.1; done
echo 'tessera-steps/1 {{"ask": "pause", "who": "nobody used it"}}' > /dev/termination-log
exit 75
"""
"""As the watch of a notebook does, when it is told so: a warning, its end, and the last word."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A cluster of one node, which runs what it is told to run."""
    folder = tmp_path_factory.mktemp("kubernetes")
    try:
        with (
            bridge(),
            running(folder, address=ADDRESS, api_flags=api_flags(folder), kubelets=False) as plane,
            names.answered(plane, ADDRESS),
            Node(plane, tmp_path_factory.mktemp("node"), GPUS, images=[mpi_image()] if HAS_MPI else []),
        ):
            yield plane
    except (NoNode, binaries.Unavailable) as why:
        pytest.skip(str(why))


@dataclass(frozen=True)
class Person:
    """Somebody of the tenant, at a machine of their own."""

    live: KubernetesLive
    environment: dict[str, str]

    async def run(self, *words: str) -> Said:
        return await self.live.command(*words, environment=self.environment)

    async def start(self, *words: str, stdin: int = asyncio.subprocess.DEVNULL) -> asyncio.subprocess.Process:
        return await started(*words, environment=self.environment, stdin=stdin)

    async def until_log(self, text: str, *words: str) -> None:
        """Wait until this is the log: a pod may be gone before what was read of it is kept."""

        async def is_it() -> bool:
            return (await self.run("logs", *words)).out == text

        await eventually(is_it, f"logs {' '.join(words)} shows {text!r}")

    async def sbatch(self, folder: Path, script: str) -> tuple[str, str]:
        """Number and id of the job that a script becomes."""
        path = folder / "script.sh"
        path.write_text(script)
        number = (await self.run("sbatch", "--parsable", str(path))).out.strip()
        await self.live.until_folded()
        return number, self.live.id_of(number)

    def id_of(self, name: str) -> str:
        """The id of the job of this name that has not ended."""
        (job_id,) = (job.job_id for job in self.live.state.jobs.values() if job.name == name)
        return job_id


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    """A higher class evicts a lower one at once; logs of pods that are gone are kept."""
    deployed.deploy(plane)
    body = configuration(policy=Policy(preset="priority", min_runtime_seconds=0, grow_after_seconds=1))
    gateway = {
        "TESSERA_CLUSTER_URL": plane.url,
        "TESSERA_CLUSTER_TOKEN": deployed.token_of(plane, "gateway"),
        "SSL_CERT_FILE": str(plane.ca_file),
    }
    folder = tmp_path_factory.mktemp("platform")
    steps = {"TESSERA_STEPS_IMAGE": STEPS_IMAGE}
    settings = {"gateway": gateway, "admission": steps, "binder": steps}
    async with live_on(plane, folder, body, settings=settings, layout=SEPARATE) as live:
        yield live


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def person(live: KubernetesLive, tmp_path_factory: pytest.TempPathFactory) -> Person:
    plane = live.plane
    deployed.Kubectl(plane)("apply", "-f", "-", stdin=RIGHTS)
    folder = tmp_path_factory.mktemp("person")
    token = (await live.command("token", "new", "lab")).out.strip()
    person = Person(live, {
        "PATH": str(folder),  # no kubectl, nor anything else
        "HOME": str(folder),
        "KUBECONFIG": str(plane.kubeconfig(PERSON, plane.service_account_token("lab", PERSON))),
        "TESSERA_API": live.platform.gateway_url,
        "TESSERA_TOKEN": token,
        "TESSERA_CONTAINER_IMAGE": IMAGE,
    })  # fmt: skip

    async def let_in() -> bool:
        return (await person.run("ls")).code == 0

    await eventually(let_in, "the gateway takes the new token")
    return person


class Terminal:
    """A terminal in which a command runs."""

    def __init__(self, environment: Mapping[str, str], *words: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tessera", *words],
            env={**os.environ, **environment},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    async def until(self, wanted: str) -> None:
        """Wait until this is shown after all that was waited for before."""
        await eventually(lambda: wanted in self._look(), f"the terminal shows {wanted!r}")
        self.shown = self.shown.partition(wanted)[2]

    async def end(self) -> int:
        code = await asyncio.to_thread(self.process.wait, SECONDS)
        os.close(self._ours)
        return code

    def _look(self) -> str:
        if select.select([self._ours], [], [], 0)[0]:
            with suppress(OSError):  # nobody has the other end any more
                self.shown += os.read(self._ours, 65536).decode(errors="replace")
        return self.shown


async def read_line(process: asyncio.subprocess.Process) -> str:
    """The next line, as soon as it is there; what it complained of, if it has ended instead."""
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.timeout(SECONDS):
        line = await process.stdout.readline() or await process.stderr.read()
    return line.decode().rstrip()


async def read_rest(process: asyncio.subprocess.Process) -> tuple[int, list[str]]:
    """Exit code and the further lines of a command that ends."""
    out, err = await asyncio.wait_for(process.communicate(), SECONDS)
    assert process.returncode is not None
    return process.returncode, (out or err).decode().splitlines()


def program_job(name: str, program: str, gpus: int, **more: Any) -> JobSpec:
    """A job of one real pod."""
    spec = job(name, gpus=gpus, ttl_seconds_after_finished=600, **more)
    template = Template(image=IMAGE, command=("sh", "-c", program))
    return spec.model_copy(update={"roles": (spec.roles[0].model_copy(update={"template": template}),)})


def ended(change: PodChange) -> bool:
    return change.type == "DELETED" or change.object["status"].get("phase") in ("Succeeded", "Failed")


async def test_srun_shows_what_is_written_as_it_is_written_and_ends_as_it_does(
    live: KubernetesLive, person: Person
) -> None:
    program = "echo begun; until [ -e /tmp/go ]; do sleep 0.1; done; echo rank $SLURM_PROCID; exit 3"
    srun = await person.start("srun", "--gpus=1", "--no-requeue", "--job-name=alone", "sh", "-c", program)
    assert await read_line(srun) == "begun"
    step = await person.run("srun", f"--jobid={person.id_of('alone')}", "sh", "-c", "touch /tmp/go; echo in it; exit 5")
    assert (step.code, step.out) == (5, "in it\n"), step
    assert await read_rest(srun) == (3, ["rank 0"])


async def test_steps_run_in_every_pod_of_a_gang_or_in_as_many_as_they_ask_for(
    live: KubernetesLive, person: Person, tmp_path: Path
) -> None:
    _, job_id = await person.sbatch(tmp_path, GANG)
    logs = [await person.start("logs", "-f", "--rank", str(rank), job_id) for rank in range(2)]
    assert [await read_line(log) for log in logs] == ["all 0 of 2", "all 1 of 2"]
    every = await person.run("srun", f"--jobid={job_id}", "--label", "sh", "-c", "hostname; exit $SLURM_PROCID")
    assert sorted(every.out.splitlines()) == [f"{rank}: {job_id}-1-{rank}" for rank in range(2)], every
    assert (every.code, every.err) == (1, "")
    one = await person.start("srun", f"--jobid={job_id}", "-n1", "cat", stdin=asyncio.subprocess.PIPE)
    assert await asyncio.wait_for(one.communicate(b"typed\n"), SECONDS) == (b"typed\n", b"")
    assert (await person.run("srun", f"--jobid={job_id}", "touch", "/tmp/go")).code == 0
    assert [await read_rest(log) for log in logs] == [(0, ["first", "every"]), (0, ["every"])]
    await live.until_ended(job_id)
    assert live.phase(job_id) == "succeeded"


@needs_steps
async def test_a_command_that_runs_once_starts_processes_in_the_other_pods_of_its_run(
    live: KubernetesLive, person: Person
) -> None:
    program = "echo once; srun -n 2 hostname; exit 4"
    spec = program_job("steps", program, gpus=1, launcher="steps", replicas=2, retry=Retry(max_attempts=1))
    done = await live.submit(spec)
    await live.until_ended(done.job_id)
    assert live.phase(done.job_id) == "failed"
    said = (await person.run("logs", "--rank", "0", done.job_id)).out.splitlines()
    assert said[0] == "once"
    assert sorted(said[1:]) == [f"{done.job_id}-1-{rank}" for rank in range(2)]
    assert "once" not in (await person.run("logs", "--rank", "1", done.job_id)).out
    assert live.plane.api().items("/api/v1/namespaces/lab/secrets") == []


@needs_steps
async def test_launchers_find_lists_of_a_runs_pods_and_ways_into_them(live: KubernetesLive, person: Person) -> None:
    reached = "pdsh -S hostname; pdsh -S -w $(tail -n 1 /tessera/hosts/names) exit 7; echo ended $?"
    program = f"cat /job/hostfile /tessera/hosts/mpich; ssh $(tail -n 1 /tessera/hosts/names) hostname; {reached}"
    done = await live.submit(program_job("lists", program, gpus=1, launcher="deepspeed", replicas=2))
    await live.until_ended(done.job_id)
    assert live.phase(done.job_id) == "succeeded"
    said = (await person.run("logs", "--rank", "0", done.job_id)).out.splitlines()
    first, second = (f"{done.job_id}-1-{rank}" for rank in range(2))
    assert said[:5] == [f"{first} slots=1", f"{second} slots=1", f"{first}:1", f"{second}:1", second]
    assert sorted(said[5:7]) == [f"{first}: {first}", f"{second}: {second}"]
    assert "ended 7" in said[7:]  # before or after what pdsh says of it: an engine copies both outputs as they come


@needs_steps
async def test_a_script_runs_once_and_its_tasks_on_the_pods_that_are_its_nodes(
    live: KubernetesLive, person: Person, tmp_path: Path
) -> None:
    number, job_id = await person.sbatch(tmp_path, NODES)
    await live.until_ended(job_id)
    assert live.phase(job_id) == "failed"
    once, *said = (await person.run("logs", "--rank", "0", job_id)).out.splitlines()
    tasks = [f"{rank} of 4 on {job_id}-1-{rank // 2} to {job_id}-1-0" for rank in range(4)]
    assert (once, sorted(said)) == ("once on 2", tasks)
    state = await person.run("sacct", "-n", "-P", "-j", number, "-o", "State,ExitCode")
    assert state.out == "FAILED|3:0\nFAILED|3:0\nCOMPLETED|0:0\n"  # the job, its script, its step


@needs_steps
async def test_steps_on_two_pods_and_a_pod_that_is_lost_in_the_middle_of_one(
    live: KubernetesLive, person: Person, tmp_path: Path
) -> None:
    _, job_id = await person.sbatch(tmp_path, STEPS)
    log = await person.start("logs", "-f", "--rank", "0", job_id)
    assert [await read_line(log) for _ in range(8)] == [f"all {task} {job_id}-1-{task // 4}" for task in range(8)]
    assert await read_line(log) == f"met by {job_id}-1-1"
    assert [await read_line(log) for _ in range(4)] == ["part 0 one", *(f"part {task} other" for task in (1, 2, 3))]
    assert [await read_line(log) for _ in range(5)] == ["killed 143", *["left 0"] * 2, *["in the middle"] * 2]
    deployed.Kubectl(live.plane)("delete", "pod", "-n", "lab", "--now", "--wait=false", f"{job_id}-1-1")
    await live.until_ended(job_id)
    assert live.phase(job_id) == "succeeded"
    again, *tasks = (await person.run("logs", "--rank", "0", job_id)).out.splitlines()
    assert (again, sorted(tasks)) == ("again", [str(task) for task in range(8)])
    story = " ".join((await live.command("ledger", "story", job_id)).out.split())
    assert f"PodDeleted: a pod was deleted from outside Tessera ({job_id}-1-1 on {NAME}; rank 1)" in story


@needs_steps
@pytest.mark.skipif(not HAS_MPI and not os.environ.get("CI"), reason="no OpenMPI and MPICH here: `make mpi`")
async def test_mpirun_of_a_script_adds_up_over_two_pods(live: KubernetesLive, person: Person, tmp_path: Path) -> None:
    _, job_id = await person.sbatch(tmp_path, ALLREDUCE)
    await live.until_ended(job_id)
    lines = (await person.run("logs", "--rank", "0", job_id)).out.splitlines()
    said = Counter(line for line in lines if not line.startswith("srun: "))  # OpenMPI's may end after its mpirun
    sums = {f"{kind}{rank} of 8: 36": 1 for kind in ("", "MPICH ") for rank in range(8)}
    assert said == sums | {f"{job_id}-1-{pod}": 8 for pod in range(2)}
    assert live.phase(job_id) == "succeeded"


@needs_steps
async def test_who_is_evicted_in_the_middle_of_a_step_saves_in_each_task_and_starts_again(
    live: KubernetesLive, person: Person
) -> None:
    notice = CheckpointPolicy(interval_seconds=60, notice_seconds=120)
    more = {"checkpoint": notice, "termination_grace_seconds": 120, "launcher": "steps", "replicas": 2}
    job_id = (await live.submit(program_job("tasks", STEP_SAVER, gpus=1, **more))).job_id
    log = await person.start("logs", "-f", "--rank", "0", job_id)
    assert [await read_line(log) for _ in range(2)] == ["begun"] * 2
    rush = await person.start("srun", f"--gpus={GPUS}", "--qos=high", "--job-name=rush", "echo", "rushed")
    assert [await read_line(log) for _ in range(2)] == ["noticed"] * 2
    assert (await person.run("checkpoint", job_id, "s3://bucket/step-1")).code == 0
    code, rest = await read_rest(log)
    assert (code, sorted(rest)) == (0, ["saved", "saved", "script"])
    assert await read_rest(rush) == (0, ["rushed"])
    await live.until_ended(job_id)
    assert live.phase(job_id) == "succeeded"
    assert (await person.run("logs", "--rank", "0", job_id)).out == "again\n" * 2
    rows = (await person.run("sacct", "-D", "-n", "-P", "-j", job_id, "-o", "JobName,State")).out.split()
    assert rows == [
        "tasks|PREEMPTED",
        "batch|CANCELLED",
        "sh|COMPLETED",
        "tasks|COMPLETED",
        "batch|COMPLETED",
        "echo|COMPLETED",
    ]


@needs_steps
async def test_salloc_gives_a_shell_in_a_pod_whose_srun_reaches_all_and_takes_the_allocation_back(
    live: KubernetesLive, person: Person
) -> None:
    terminal = Terminal(person.environment, "salloc", "-N2", "--gpus-per-node=1", "--job-name=shell")
    await terminal.until("Granted job allocation ")
    await terminal.until("# ")
    job_id = person.id_of("shell")
    terminal.type("echo $((6 * 7)) $(tty) $(hostname)\n")
    await terminal.until(f"42 /dev/pts/0 {job_id}-1-0")
    terminal.type("srun -w $(hostname | sed 's/0$/1/') sh -c 'echo $((8 * 8)) on $(hostname) of $SLURM_NODEID'\n")
    await terminal.until(f"64 on {job_id}-1-1 of 1")
    await terminal.until("# ")  # until then the step has what is typed
    terminal.type("srun sh -c 'echo $((5 * 5)) begun; sleep 1000'\n")
    for _ in range(2):
        await terminal.until("25 begun")
    terminal.type("\x03")  # ends the step, not salloc
    await terminal.until("# ")  # until then the step has what is typed
    terminal.type("echo $((9 * 9))\n")
    await terminal.until("81")
    terminal.type("exit 7\n")
    await terminal.until(f"Relinquishing job allocation {live.number_of(job_id)}")
    assert await terminal.end() == 7
    await live.until_ended(job_id)
    assert live.phase(job_id) == "cancelled"


@pytest.mark.skipif(not STEPS_SOURCES.exists(), reason="the step runner's sources are not here")
async def test_salloc_runs_a_step_in_all_of_its_pods_with_the_input_and_the_exit_code_of_its_tasks(
    live: KubernetesLive, person: Person
) -> None:
    both = await person.run("salloc", "-N2", "--gpus-per-node=1", "--job-name=both", "srun", "-n", "2", "hostname")
    names = sorted(both.out.splitlines())
    assert (both.code, [name[-4:] for name in names]) == (0, ["-1-0", "-1-1"]), both
    words = (
        "salloc",
        "-N2",
        "--gpus-per-node=1",
        "srun",
        "-l",
        "sh",
        "-c",
        "cat; echo bad >&2; exit $((8 + SLURM_PROCID))",
    )
    piped = await person.start(*words, stdin=asyncio.subprocess.PIPE)
    out, err = await asyncio.wait_for(piped.communicate(b"typed\n"), SECONDS)
    assert (piped.returncode, sorted(out.decode().splitlines())) == (9, ["0: typed", "1: typed"]), err
    assert {"0: bad", "1: bad"} <= set(err.decode().splitlines())


@pytest.mark.skipif(not STEPS_SOURCES.exists(), reason="the step runner's sources are not here")
async def test_ctrl_c_of_a_step_from_outside_reaches_its_tasks_and_the_job_goes_on(
    live: KubernetesLive, person: Person
) -> None:
    spec = program_job("lasting", "sleep 1000", gpus=1, launcher="steps", replicas=2, retry=Retry(max_attempts=1))
    job_id = (await live.submit(spec)).job_id
    await live.until_phase(job_id, "running")
    trap = "trap 'echo told; exit 6' INT; echo begun; while :; do sleep 0.1; done"
    step = await person.start("srun", f"--jobid={job_id}", "-n2", "sh", "-c", trap)
    assert [await read_line(step) for _ in range(2)] == ["begun", "begun"]
    step.send_signal(signal.SIGINT)
    assert await read_rest(step) == (6, ["told", "told"])
    assert live.phase(job_id) == "running"
    assert (await person.run("scancel", job_id)).code == 0
    await live.until_ended(job_id)


async def test_salloc_without_the_step_runner_has_a_pod_for_each_task(live: KubernetesLive, person: Person) -> None:
    words = ("--spread-tasks", "--ntasks=2", "--gpus-per-task=1", "srun", "--label", "sh", "-c")
    both = await person.run("salloc", *words, "echo $SLURM_NTASKS; exit 9")
    assert (both.code, sorted(both.out.splitlines())) == (9, ["0: 2", "1: 2"]), both
    terminal = Terminal(
        person.environment, "salloc", "--spread-tasks", "--ntasks=2", "--gpus-per-task=1", "--job-name=far"
    )
    await terminal.until("# ")
    number = live.number_of(person.id_of("far"))
    terminal.type("srun -n1 echo $((8 * 8)) here\n")
    await terminal.until("64 here")
    terminal.type("srun hostname\n")
    await terminal.until(f"tessera srun --jobid={number} COMMAND")
    terminal.type("exit 7\n")
    assert await terminal.end() == 7


async def test_who_is_evicted_has_its_notice_and_sigterm_and_keeps_its_gpus_until_it_has_ended(
    live: KubernetesLive, person: Person
) -> None:
    notice = CheckpointPolicy(interval_seconds=60, notice_seconds=120)
    saver = program_job("saver", SAVER, gpus=GPUS, checkpoint=notice, termination_grace_seconds=120)
    job_id = (await live.submit(saver)).job_id
    log = await person.start("logs", "-f", "saver")
    assert await read_line(log) == "begun"
    rush = await person.start("srun", f"--gpus={GPUS}", "--qos=high", "--job-name=rush", "echo", "rushed")
    assert await read_line(log) == "noticed"
    assert (await person.run("checkpoint", job_id, "s3://bucket/step-1")).code == 0
    assert await read_line(log) == "saving"
    rush_id = person.id_of("rush")
    assert live.phase(rush_id) == "queued"
    assert (await person.run("srun", f"--jobid={job_id}", "touch", "/tmp/saved")).code == 0
    assert await read_rest(log) == (0, ["saved"])
    assert await read_rest(rush) == (0, ["rushed"])
    seen = [(change.object["metadata"]["name"], ended(change)) for change in live.pods]
    begun = next(n for n, (name, _) in enumerate(seen) if name == f"{rush_id}-1-0")
    assert any(is_over for name, is_over in seen[:begun] if name == f"{job_id}-1-0")
    await live.until_ended(job_id)
    assert live.phase(job_id) == "succeeded"
    assert (await person.run("logs", "saver")).out == "again, from s3://bucket/step-1\n"
    await person.until_log("begun\nnoticed\nsaving\nsaved\n", "saver", "--attempt", "1")


async def test_the_kubelets_probe_tells_a_sessions_warning_and_its_end_until_it_is_paused(
    live: KubernetesLive, person: Person
) -> None:
    session = Session(kind="notebook", idle_seconds=3600, warning_seconds=600)
    job_id = (await live.submit(program_job("book", WARNED, gpus=1, session=session))).job_id

    async def tell(what: str) -> None:
        said = await person.run("srun", f"--jobid={job_id}", "touch", f"/tmp/{what}")
        assert said.code == 0, said

    def is_ready() -> bool:
        conditions = live.plane.api().get(f"/api/v1/namespaces/lab/pods/{job_id}-1-0")["status"]["conditions"]
        return ("Ready", "True") in {(each["type"], each["status"]) for each in conditions}

    def stops_ts(state: State) -> int:
        (run,) = state.runs.found((f"{job_id}-1",))
        return run.unused_until

    await live.until_phase(job_id, "running")
    await eventually(is_ready, "the kubelet has asked once")
    await tell("warn")
    await live.until(lambda state: stops_ts(state) > state.ts, "the ledger knows of the warning", PROBED_SECONDS)
    assert not is_ready()
    assert "it is paused in about" in " ".join((await live.command("explain", job_id)).out.split())
    await tell("use")
    await live.until(lambda state: not stops_ts(state), "the ledger knows that it is in use", PROBED_SECONDS)
    assert is_ready()
    await tell("leave")
    await live.until(lambda state: state.jobs.found((job_id,))[0].held, "it is paused")
    story = " ".join((await live.command("ledger", "story", job_id)).out.split())
    assert "PausedAsIdle" in story
    await live.clients["lab"].cancel(job_id)
    await live.until_idle()


async def test_the_log_of_a_pod_that_gives_way_is_shown_and_kept_to_its_end(
    live: KubernetesLive, person: Person
) -> None:
    spec = program_job("elastic", ELASTIC, gpus=1, termination_grace_seconds=60)
    role = Role.model_validate(spec.roles[0].model_dump() | {"max_replicas": GPUS})
    job_id = (await live.submit(spec.model_copy(update={"roles": (role,)}))).job_id
    await live.until_phase(job_id, "running")
    await live.until(lambda state: has_pods(state, job_id, GPUS), "it has all GPUs")
    logs = {rank: await person.start("logs", "-f", "--rank", str(rank), job_id) for rank in range(GPUS)}
    for rank, log in logs.items():
        assert await read_line(log) == f"rank {rank}"
    rush = await person.start("srun", "--gpus=1", "--job-name=next", "echo", "my turn")
    rests = {asyncio.create_task(read_rest(log)): rank for rank, log in logs.items()}
    done, going_on = await asyncio.wait(rests, return_when=asyncio.FIRST_COMPLETED)
    (left,) = done
    assert left.result() == (0, ["saving", "the last line"])
    assert rests[left] > 0
    assert await read_rest(rush) == (0, ["my turn"])
    await person.until_log(f"rank {rests[left]}\nsaving\nthe last line\n", "--rank", str(rests[left]), job_id)
    assert (await person.run("scancel", job_id)).code == 0
    for each in going_on:
        assert await each == (0, ["saving", "the last line"])
    await live.until_idle()
    assert all(set(node.gpu_free) == {1000} for node in live.state.nodes.values())


async def test_why_a_program_did_not_start_or_was_ended_is_said_in_the_nodes_words(
    live: KubernetesLive, person: Person
) -> None:
    srun = ("srun", "--no-requeue")
    big = await person.run(*srun, "--mem=64M", "sh", "-c", "echo begun; tail /dev/zero")
    assert (big.code, big.out, "OOMKilled" in big.err) == (137, "begun\n", True), big
    late = await person.run(*srun, "--time=0:02", "--signal=TERM@1", "sh", "-c", "echo begun; sleep 1000")
    assert (late.code, late.out, "TimeLimit" in late.err) == (137, "begun\n", True), late
    wrong = await person.start(*srun, "--job-name=wrong", "--container-image=tessera.test/none:1", "true")
    assert wrong.stderr is not None
    async with asyncio.timeout(SECONDS):
        while "image" not in (line := (await wrong.stderr.readline()).decode()):
            assert line, "srun has ended"
    assert "waiting to start" in line
    told = " ".join((await person.run("explain", person.id_of("wrong"))).out.split())
    assert "Its node says of pod" in told
    assert "waiting to start" in told
    assert (await person.run("scancel", person.id_of("wrong"))).code == 0
    assert await asyncio.wait_for(wrong.wait(), SECONDS) == Exit.CANCELLED
