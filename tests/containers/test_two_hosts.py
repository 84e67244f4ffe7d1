"""
Runs whose pods are on two hosts with networks of their own: launchers work over a wire, not because a machine is one.

Pods of test_real_pods.py share a bridge; here each has the other in another subnet, behind two hosts that route.
"""

import os
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tessera_schemas.job import JobSpec, Retry, Template
from tessera_schemas.shard.services import SEPARATE
from tests.containers import names
from tests.containers.hosts import WIRE, apart
from tests.containers.launchers_image import FOR_DEEPSPEED, LAUNCHERS_IMAGE, launchers_image
from tests.containers.node import (
    HAS_MPI,
    IMAGE,
    MPI_IMAGE,
    STEPS_IMAGE,
    STEPS_SOURCES,
    Host,
    Node,
    NoNode,
    api_flags,
    mpi_image,
)
from tests.e2e.live import configuration, job, terminal
from tests.kubernetes import binaries, deployed
from tests.kubernetes.conftest import running
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not STEPS_SOURCES.exists(), reason="the step runner's sources are not here"),
]
needs_mpi = pytest.mark.skipif(
    not HAS_MPI and not os.environ.get("CI"), reason="no OpenMPI and MPICH with their compilers here: `make mpi`"
)
Cluster = tuple[ControlPlane, tuple[Host, ...]]
SLOTS, PATIENCE_SECONDS = 4, 200.0
SUMS = [f"{rank} of 8: 36" for rank in range(2 * SLOTS)]
MPIRUN = {
    "openmpi": "mpirun.openmpi --allow-run-as-root sh -c 'allreduce.openmpi; hostname'",
    # MPICH's leaves without MPI_Finalize, and is told of it (docs/steps.md).
    "mpich": "mpirun.mpich sh -c 'hostname; exec allreduce.mpich' 2> /dev/null | grep -E '^[^ ]+-1-.$|of 8'",
}
STEP = """\
second=$(tail -n 1 /tessera/hosts/names)
srun --ntasks-per-node=1 hostname -i | sort
srun -N1 -n1 --exact -w $(hostname) sh -c 'nc -l -p 4711' &
srun -N1 -n1 --exact -w $second sh -c "until echo met by \\$(hostname) | nc $(hostname) 4711; do sleep 0.1; done"
wait
ssh $second cat /proc/net/route | awk '$2 == "00000000" { print $1 }'
"""


TORCH = """
import socket
import torch
import torch.distributed as group
group.init_process_group("gloo")
one = torch.tensor([group.get_rank() + 1])
group.all_reduce(one)
print(f"{group.get_rank()} of {group.get_world_size()}: {one.item()} in {socket.gethostname()}\\n", end="")
"""
JAX = """
import os
import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils
jax.distributed.initialize(
    num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=int(os.environ["JAX_PROCESS_ID"])
)
total = multihost_utils.process_allgather(jnp.array([jax.process_index() + 1])).sum()
print(jax.process_index(), "of", jax.process_count(), "sum", total)
"""
RAY = """
import socket
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as on
ray.init(log_to_driver=False)
@ray.remote(num_cpus=1)
def tell():
    return socket.gethostname()
alive = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
print("told by", *sorted(ray.get([tell.options(scheduling_strategy=on(node, soft=False)).remote() for node in alive])))
"""
PROGRAMS = {"torch_sum.py": TORCH, "jax_sum.py": JAX, "ray_hosts.py": RAY}
BY_TORCH = {
    # Beside Python 3.11 that of Debian, 1.13, takes no word for where output goes but those of one stream.
    "torchrun": "exec python3 -m torch.distributed.run --redirects 1 --tee 1 torch_sum.py",
    "deepspeed": f"export PYTHONPATH=$PYTHONPATH:/{FOR_DEEPSPEED}; exec deepspeed torch_sum.py",
}


@pytest.fixture(scope="module")
def real_launchers(tmp_path_factory: pytest.TempPathFactory) -> Path | str:
    """The archive of their image; in words why there is none."""
    try:
        return launchers_image(tmp_path_factory.mktemp("image"), PROGRAMS)
    except NoNode as why:
        return str(why)


@pytest.fixture
def needs_launchers(real_launchers: Path | str) -> None:
    if isinstance(real_launchers, str):
        pytest.skip(real_launchers)


@pytest.fixture(scope="module")
def cluster(real_launchers: Path | str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two nodes, a host each."""
    folder = tmp_path_factory.mktemp("kubernetes")
    images: list[bytes | Path] = [mpi_image()] if HAS_MPI else []
    images += [real_launchers] if isinstance(real_launchers, Path) else []
    copies = "overlayfs" if isinstance(real_launchers, Path) else "native"  # of gigabytes nobody wants more than one
    try:
        with (
            apart() as hosts,
            running(
                folder,
                address=WIRE.address,
                kubelets_at=[host.address for host in hosts],
                api_flags=api_flags(folder),
                kubelets=False,
            ) as plane,
            names.answered(plane, WIRE.address),
            Node(plane, tmp_path_factory.mktemp("one"), SLOTS, host=hosts[0], images=images, snapshotter=copies),
            Node(plane, tmp_path_factory.mktemp("other"), SLOTS, host=hosts[1], images=images, snapshotter=copies),
        ):
            yield plane, hosts
    except (NoNode, binaries.Unavailable) as why:
        pytest.skip(str(why))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    steps = {"TESSERA_STEPS_IMAGE": STEPS_IMAGE}
    settings = {"admission": steps, "binder": steps}
    home = tmp_path_factory.mktemp("platform")
    async with live_on(cluster[0], home, configuration(), settings=settings, layout=SEPARATE) as live:
        yield live


@pytest.fixture
def hosts(cluster: Cluster) -> tuple[Host, ...]:
    return cluster[1]


def over_both(launcher: str, image: str, program: str) -> JobSpec:
    """A job of a pod on each host, that has all its slots."""
    spec = job(launcher, gpus=SLOTS, replicas=2, launcher=launcher, ttl_seconds_after_finished=600)
    template = Template(image=image, command=("sh", "-c", program))
    resources = spec.roles[0].resources.model_copy(update={"memory_bytes": 4 * 2**30})
    role = spec.roles[0].model_copy(update={"template": template, "resources": resources})
    return spec.model_copy(update={"roles": (role,), "retry": Retry(max_attempts=1)})


async def said_by(live: KubernetesLive, spec: JobSpec, hosts: tuple[Host, ...]) -> tuple[list[str], list[str]]:
    """The job's pods, and what they wrote, the first pod first; they were on both hosts, in the subnets of these."""
    job_id = (await live.submit(spec)).job_id
    await live.until(lambda state: terminal(state, job_id), "the job has ended", PATIENCE_SECONDS)
    pods = [f"{job_id}-1-{rank}" for rank in (0, 1)]
    kubectl = deployed.Kubectl(live.plane)
    lines = [line for pod in pods for line in kubectl("logs", "-n", "lab", pod).splitlines()]
    said = [line for line in lines if not line.startswith("srun: ")]  # of waiting for the other pod
    found = [live.plane.api().get(f"/api/v1/namespaces/lab/pods/{pod}") for pod in pods]
    stood = {pod["spec"]["nodeName"]: pod["status"]["podIP"] for pod in found}
    assert {name: ip.rpartition(".")[0] for name, ip in stood.items()} == {h.name: h.pods.numbers for h in hosts}
    assert live.phase(job_id) == "succeeded", "\n".join(lines)
    return pods, said


async def test_steps_and_what_they_open_reach_the_other_host(live: KubernetesLive, hosts: tuple[Host, ...]) -> None:
    pods, said = await said_by(live, over_both("steps", IMAGE, STEP), hosts)
    assert [address.rpartition(".")[0] for address in said[:2]] == sorted(host.pods.numbers for host in hosts)
    assert said[2:] == [f"met by {pods[1]}", "eth0"], said


@needs_mpi
@pytest.mark.parametrize("kind", MPIRUN)
async def test_mpirun_adds_up_over_two_hosts(live: KubernetesLive, hosts: tuple[Host, ...], kind: str) -> None:
    pods, said = await said_by(live, over_both("mpi", MPI_IMAGE, MPIRUN[kind]), hosts)
    told = [line for line in said if line in {*SUMS, *pods}]  # OpenMPI complains of a shell that it does not know
    assert sorted(told) == sorted([*SUMS, *(pod for pod in pods for _ in range(SLOTS))]), said


@pytest.mark.usefixtures("needs_launchers")
@pytest.mark.parametrize("launcher", BY_TORCH)
async def test_torch_adds_up_by_gloo_over_two_hosts(
    live: KubernetesLive, hosts: tuple[Host, ...], launcher: str
) -> None:
    pods, said = await said_by(live, over_both(launcher, LAUNCHERS_IMAGE, BY_TORCH[launcher]), hosts)
    sums = sorted(found[0] for line in said if (found := re.search(r"\d of 8: .*", line)))
    assert sums == [f"{each} in {pods[rank // SLOTS]}" for rank, each in enumerate(SUMS)], said


@pytest.mark.usefixtures("needs_launchers")
async def test_jax_gathers_over_two_hosts(live: KubernetesLive, hosts: tuple[Host, ...]) -> None:
    _, said = await said_by(live, over_both("jax", LAUNCHERS_IMAGE, "exec python3 jax_sum.py"), hosts)
    assert [line for line in said if " sum " in line] == ["0 of 2 sum 3", "1 of 2 sum 3"]


@pytest.mark.usefixtures("needs_launchers")
async def test_ray_runs_tasks_on_two_hosts(live: KubernetesLive, hosts: tuple[Host, ...]) -> None:
    pods, said = await said_by(live, over_both("ray", LAUNCHERS_IMAGE, "exec python3 ray_hosts.py"), hosts)
    assert f"told by {' '.join(pods)}" in said
