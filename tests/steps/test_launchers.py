"""
The jobs of docs/launchers.md do what the page says of them, with the real launcher where this machine has it.

`make mpi` installs OpenMPI, MPICH and Intel MPI, without which their tests are skipped, but in CI. That of an image
with pdsh is skipped without it.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tessera.binder.decide.pods import pod_of
from tests.steps.launched import launched_pods, shown, shown_job
from tests.steps.pods import PATIENCE_SECONDS, compile_with_mpi, mpi_program, pods_of_a_run
from tests.unit.binder.binder_builders import job, node
from tests.unit.binder.binder_builders import run as run_of

ALONE = {
    # Names are addresses of loopback, which OpenMPI takes for its own machine's where it looks them up.
    "OMPI_MCA_orte_do_not_resolve": "1",
    "OMPI_MCA_btl": "self,tcp",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
ANCESTORS = "p=$$; while [ $p -gt 1 ]; do echo $p >> ancestors; p=$(cut -d' ' -f4 /proc/$p/stat); done"
"""Of a process in a pod the pod's runner is one."""


def image_with(folder: Path, **programs: str) -> dict[str, str]:
    """Variables of an image in which each named program is a script."""
    (folder / "image").mkdir(exist_ok=True)
    for name, script in programs.items():
        path = folder / "image" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return {"PATH": f"{folder}/image:{os.environ['PATH']}"}


@pytest.mark.parametrize("kind", ["openmpi", "mpich", "intel"])
def test_mpirun_finds_the_pods_their_slots_and_the_way_there(program: Path, tmp_path: Path, kind: str):
    image = image_with(
        tmp_path, mpirun=f'exec {mpi_program(kind, "mpirun")} "$@"', ssh="echo an ssh of the image >&2; exit 255"
    )
    compile_with_mpi(kind, Path(__file__).with_name("allreduce.c"), tmp_path / "allreduce")
    (tmp_path / "train").write_text(f"#!/bin/sh\n{ANCESTORS}\nexec ./allreduce\n")
    (tmp_path / "train").chmod(0o755)
    with launched_pods(program, tmp_path, shown_job("mpi"), image | ALONE) as run:
        code, out, err = run.ended()
    assert code == 0, err
    assert sorted(out.splitlines()) == [f"{rank} of 8: 36" for rank in range(8)]
    ancestors = (tmp_path / "ancestors").read_text().split()
    assert [ancestors.count(str(pod.pid)) for pod in run.pods] == [4, 4]


@pytest.mark.parametrize("kind", ["openmpi", "mpich", "intel"])
def test_in_a_script_of_slurm_mpirun_starts_its_tasks_by_srun_beside_the_lists(
    program: Path, tmp_path: Path, kind: str
):
    compile_with_mpi(kind, Path(__file__).with_name("allreduce.c"), tmp_path / "train")
    variables = {"SLURM_JOB_ID": "5", "SLURM_JOBID": "5", "SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "4(x2)"}
    variables |= {"SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2"}
    variables |= dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), "127.88.0.[0-1]")
    installed = listed(program, tmp_path, 2, **variables)
    script = f"{mpi_program(kind, 'mpirun')} -np 8 ./train && srun -n1 bash -c 'echo step $SLURM_STEP_ID'"
    with pods_of_a_run(installed, tmp_path, 2, script, variables | ALONE) as run:
        code, out, err = run.ended()
    assert code == 0, err
    assert sorted(out.splitlines()) == [*(f"{rank} of 8: 36" for rank in range(8)), "step 1"]


def listed(program: Path, folder: Path, pods: int, **variables: str) -> Path:
    """The program as the init container of such pods puts it there, beside lists of them."""
    named = {"TESSERA_STEPS_HOSTS": "127.88.0.{rank}", "TESSERA_WORLD_SIZE": str(pods)}
    subprocess.run([program, "install", folder / "tessera"], check=True, env=named | variables)
    return folder / "tessera" / "bin" / "tessera-steps"


def test_the_lists_count_gpus_and_in_scripts_of_slurm_tasks(program: Path, tmp_path: Path):
    hosts = tmp_path / "tessera" / "hosts"
    listed(program, tmp_path, 3, TESSERA_STEPS_SLOTS="1(x1),8(x2)")
    assert (hosts / "openmpi").read_text() == "127.88.0.0 slots=1\n127.88.0.1 slots=8\n127.88.0.2 slots=8\n"
    assert (hosts / "mpich").read_text() == "127.88.0.0:1\n127.88.0.1:8\n127.88.0.2:8\n"
    assert (hosts / "names").read_text() == "127.88.0.0\n127.88.0.1\n127.88.0.2\n"
    listed(program, tmp_path, 2, TESSERA_STEPS_SLOTS="8(x2)", SLURM_TASKS_PER_NODE="3,2")
    assert (hosts / "openmpi").read_text() == "127.88.0.0 slots=3\n127.88.0.1 slots=2\n"
    assert (hosts / "deepspeed").read_text() == "127.88.0.0 slots=8\n127.88.0.1 slots=8\n"


SHOWN = "env | grep -E '^(OMPI|PRTE|HYDRA|I_MPI|PDSH|WCOLL)' | LC_ALL=C sort | sed \"s|$PWD/||\""


def test_what_the_job_says_of_a_launcher_stays(program: Path, tmp_path: Path):
    own = {"HYDRA_LAUNCHER": "rsh", "OMPI_MCA_orte_default_hostfile": "mine", "I_MPI_PERHOST": "2"}
    with pods_of_a_run(listed(program, tmp_path, 1), tmp_path, 1, SHOWN, {**own, "TESSERA_STEPS_SLOTS": "4"}) as run:
        _, out, _ = run.ended()
    assert out.splitlines() == [
        "HYDRA_HOST_FILE=tessera/hosts/mpich",
        "HYDRA_LAUNCHER=rsh",
        "I_MPI_HYDRA_BOOTSTRAP=ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC=tessera/bin/ssh",
        "I_MPI_HYDRA_HOST_FILE=tessera/hosts/mpich",
        "I_MPI_PERHOST=2",
        "OMPI_MCA_orte_default_hostfile=mine",
        "OMPI_MCA_plm_rsh_agent=tessera/bin/ssh",
        "PDSH_RCMD_TYPE=ssh",
        "PRTE_MCA_plm_ssh_agent=tessera/bin/ssh",
        "WCOLL=tessera/hosts/names",
    ]


def test_beside_variables_of_slurm_only_pdsh_is_told(program: Path, tmp_path: Path):
    with pods_of_a_run(listed(program, tmp_path, 1), tmp_path, 1, SHOWN, {"SLURM_JOB_ID": "5"}) as run:
        _, out, _ = run.ended()
    assert out.splitlines() == ["PDSH_RCMD_TYPE=ssh", "WCOLL=tessera/hosts/names"]


@pytest.mark.parametrize("of_the_image", [True, False], ids=["of the image", "ours"])
def test_pdsh_reaches_every_pod_of_the_list(program: Path, tmp_path: Path, of_the_image: bool):
    if of_the_image and shutil.which("pdsh") is None:
        pytest.skip("no pdsh here")
    installed = listed(program, tmp_path, 3)
    pdsh = "pdsh" if of_the_image else installed.parents[1] / "fallback" / "pdsh"
    script = f"""
{pdsh} -S 'echo pod $WHERE is %n; exit $WHERE'; echo $?
{pdsh} -S -f 1024 -w 127.88.0.2,127.88.0.1 -x 127.88.0.2 'echo %n of %h'
{pdsh} -N -w 127.88.0.[1-2] exit 3; echo $?
"""
    with pods_of_a_run(installed, tmp_path, 3, script) as run:
        _, out, err = run.ended()
    told = [f"127.88.0.{rank}: pod {rank} is {rank}" for rank in range(3)]
    assert sorted(out.splitlines()[:3]) == told, err
    assert out.splitlines()[3:] == ["2", "127.88.0.1: 0 of 127.88.0.1", "0"]


def test_our_pdsh_refuses_by_name_what_it_does_not_know(program: Path, tmp_path: Path):
    installed = listed(program, tmp_path, 1)
    pdsh = installed.parents[1] / "fallback" / "pdsh"
    with pods_of_a_run(installed, tmp_path, 1, f"{pdsh} -g rack true; {pdsh} -w github.com true; {pdsh} -S") as run:
        code, _, err = run.ended()
    assert code == 1
    assert "-g is refused" in err
    assert "github.com: no pod of this run is called so" in err
    assert "no command" in err


OF_JAX = """
import json, os
from types import SimpleNamespace as Has
said = {}
process_index, process_count = (lambda: said["process_id"]), (lambda: said["num_processes"])
def initialize(**given):
    said.update(given, address=os.environ["JAX_COORDINATOR_ADDRESS"], devices=os.environ["JAX_LOCAL_DEVICE_IDS"])
    with open(f"said-{given['process_id']}", "w") as file:
        json.dump(said, file)
distributed = Has(initialize=initialize)
"""
"""A module in the place of JAX that tells what it is told, and reads the variables that JAX reads by itself."""


def test_every_pod_tells_jax_its_number_and_where_the_first_one_listens(program: Path, tmp_path: Path):
    (script,) = shown("python", "import os\nimport jax")
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "jax.py").write_text(OF_JAX)
    image = image_with(tmp_path, python=f'exec {sys.executable} "$@"')
    with launched_pods(program, tmp_path, shown_job("jax"), image) as run:
        code, out, err = run.ended()
    assert (code, out) == (0, "0 of 2\n"), err
    said = [json.loads((tmp_path / f"said-{rank}").read_text()) for rank in (0, 1)]
    assert [each["process_id"] for each in said] == [0, 1]
    assert {each["num_processes"] for each in said} == {2}
    (address,) = {each["address"] for each in said}
    assert address.startswith("127.88.0.0:")
    assert {each["devices"] for each in said} == {"0,1,2,3"}


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_every_pod_runs_the_command_with_its_place_in_the_group(program: Path, tmp_path: Path, launcher: str):
    record = 'echo "$@ $MASTER_ADDR $PET_NNODES $PET_NODE_RANK $PET_NPROC_PER_NODE" > said-$RANK'
    spec = shown_job(launcher)
    with launched_pods(program, tmp_path, spec, image_with(tmp_path, **{launcher: record})) as run:
        assert run.ended()[0] == 0
    begun = " ".join(spec.roles[0].template.command[1:])
    pods, gpus = spec.pods(), spec.roles[0].resources.gpus
    for rank in range(pods):
        assert (tmp_path / f"said-{rank}").read_text() == f"{begun} 127.88.0.0 {pods} {rank} {gpus}\n"


def test_a_script_by_steps_runs_once_and_its_srun_everywhere(program: Path, tmp_path: Path):
    image = image_with(tmp_path, prepare="echo prepared", train="echo trained in $TESSERA_RANK")
    with launched_pods(program, tmp_path, shown_job("steps"), image) as run:
        code, out, err = run.ended()
    assert code == 0, err
    assert sorted(out.splitlines()) == ["prepared", *(f"trained in {rank}" for rank in range(4))]


def test_deepspeed_finds_its_list_and_starts_in_every_pod_by_pdsh(program: Path, tmp_path: Path):
    spec = shown_job("deepspeed")
    body = pod_of(job(spec), run_of(spec), 0, spec, 7, node())["spec"]
    (mount,) = [each for each in body["containers"][0]["volumeMounts"] if each["mountPath"] == "/job/hostfile"]
    assert mount == {"name": "steps", "mountPath": "/job/hostfile", "subPath": "hosts/deepspeed", "readOnly": True}
    # The words by which DeepSpeed 0.19 begins its processes.
    image = image_with(
        tmp_path,
        deepspeed=f"""
ssh -o PasswordAuthentication=no 127.88.0.0 hostname > /dev/null || exit 9
hosts=$(sed 's/ .*//' {tmp_path}/tessera/{mount["subPath"]} | paste -sd,)
which pdsh > /dev/null || exit 8
exec pdsh -S -f 1024 -w $hosts "export A=1; cd {tmp_path};" launch --node_rank=%n "$@"
""",
        launch='echo "$TESSERA_RANK $A $*"',
    )
    with launched_pods(program, tmp_path, spec, image) as run:
        code, out, err = run.ended()
    assert code == 0, err
    assert (tmp_path / "tessera" / "hosts" / "deepspeed").read_text().splitlines()[1] == "127.88.0.1 slots=4"
    told = [f"127.88.0.{rank}: {rank} 1 --node_rank={rank} {tmp_path}/train.py" for rank in (0, 1)]
    assert sorted(out.splitlines()) == told


def test_ray_has_started_in_every_pod_before_the_command_begins(program: Path, tmp_path: Path):
    image = image_with(tmp_path, ray='echo "$TESSERA_RANK $*" >> started', python="cat started; echo $RAY_ADDRESS $1")
    with launched_pods(program, tmp_path, shown_job("ray"), image) as run:
        code, out, err = run.ended()
    assert code == 0, err
    first, second, last = out.splitlines()
    assert (first, second) == ("0 start --head --port=6379", "1 start --address=127.88.0.0:6379")
    assert last == f"127.88.0.0:6379 {tmp_path}/train.py"


def test_without_ray_the_command_does_not_begin(program: Path, tmp_path: Path):
    image = image_with(tmp_path, ray="[ $TESSERA_RANK = 0 ]", python="echo begun")
    with launched_pods(program, tmp_path, shown_job("ray"), image) as run:
        out, _ = run.pods[0].communicate(timeout=PATIENCE_SECONDS)
    assert (run.pods[0].returncode, out) == (1, b"")
