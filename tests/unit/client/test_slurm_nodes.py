"""A node of a script is a pod, and the script runs once: what a real Slurm (22.05) shows the same script."""

import re
import subprocess
from pathlib import Path

import pytest

from tessera.client.input import files
from tessera.client.outcomes import Failure
from tessera.client.slurm.scripts import pods
from tessera.client.slurm.scripts.against import Against
from tessera.client.slurm.scripts.jobs import job_of, needs_steps
from tessera.client.slurm.scripts.layout import NodeSize
from tessera.client.slurm.scripts.srun import REFUSED_BY_RUNNER, TAKEN_BY_RUNNER
from tessera_schemas.job import JobSpec
from tests.unit.client.slurm_builders import HERE, NOON, job, pod_of, read, run_pod, wrong

GIB = 2**30
POOL = (NodeSize(64_000, 512 * GIB, 8, "h100"), NodeSize(128_000, 256 * GIB))
PAGE = Path(__file__).parents[3] / "docs" / "steps.md"
RUN = f"{'j' * 20}-1"


def noted(*options: str, body: str = "srun python train.py", line: str = "") -> tuple[JobSpec, list[str]]:
    """The job of a script whose pods are nodes, and what is noted about it."""
    made = read(*options, body=body, line=line)
    against = Against(made)
    spec = files.job_spec(job_of(made, "train:1", HERE, NOON, against, POOL), "train.sh")
    if against.error is not None:
        raise against.error
    return JobSpec.model_validate({"queue": "default", **spec}), against.notes


def variables(*options: str) -> dict[str, str]:
    """Slurm's variables in the first pod."""
    _, env = pod_of(noted(*options)[0])
    return {name: value for name, value in env.items() if name.startswith("SLURM")}


@pytest.mark.parametrize(
    ("options", "pods", "gpus", "cpu_milli"),
    [
        (("--nodes=2", "--ntasks-per-node=8", "--gpus-per-node=8"), 2, 8, 0),
        (("--ntasks=6", "--mem=12G"), 1, 0, 6000),
        (("-N 2", "--ntasks-per-node=4"), 2, 0, 4000),
        (("--ntasks=16", "--gpus-per-task=1"), 2, 8, 0),
        (("--gpus=16",), 2, 8, 0),
        (("--gpus=8", "--nodes=2", "-c 4"), 2, 4, 4000),
        (("--ntasks=3", "--nodes=2", "--gpus-per-task=2"), 2, 4, 0),
        (("--gpus=4", "--gpus-per-task=2"), 1, 4, 0),
        (("--gpus=2", "--ntasks-per-gpu=3"), 1, 2, 0),
        (("--nodes=1-3", "--ntasks-per-node=2"), 1, 0, 2000),
        (("--ntasks=256",), 2, 0, 128_000),
    ],
)
def test_a_pod_has_what_slurms_node_has(options: tuple[str, ...], pods: int, gpus: int, cpu_milli: int) -> None:
    spec, _ = noted(*options)
    (role,) = spec.roles
    assert (role.replicas, role.resources.gpus, role.resources.cpu_milli, spec.launcher) == (
        pods,
        gpus,
        cpu_milli,
        "steps",
    )


def test_memory_is_of_a_node_of_its_cpus_or_of_its_gpus() -> None:
    common = ("--nodes=2", "--ntasks-per-node=4", "-c 2")
    said = {"--mem=16G": 16, "--mem-per-cpu=1G": 8, "--mem-per-gpu=3G": 12}
    for option, gib in said.items():
        assert noted(*common, "--gpus-per-node=4", option)[0].roles[0].resources.memory_bytes == gib * GIB, option


def test_a_script_begins_with_the_variables_that_slurm_gives_it() -> None:
    found = variables("--nodes=2", "--ntasks-per-node=4", "-c 3", "--gpus-per-node=h100:8", "--mem=64G", "-J name")
    assert found == {
        "SLURM_JOB_ID": "17",
        "SLURM_JOBID": "17",
        "SLURM_JOB_NAME": "name",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_NNODES": "2",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_TASKS_PER_NODE": "4(x2)",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_NTASKS": "8",
        "SLURM_NPROCS": "8",
        "SLURM_CPUS_PER_TASK": "3",
        "SLURM_CPUS_ON_NODE": "12",
        "SLURM_JOB_CPUS_PER_NODE": "12(x2)",
        "SLURM_GPUS_ON_NODE": "8",
        "SLURM_GPUS_PER_NODE": "h100:8",
        "SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7",
        "SLURM_MEM_PER_NODE": "65536",
        "SLURM_JOB_NODELIST": f"{RUN}-[0-1]",
        "SLURM_NODELIST": f"{RUN}-[0-1]",
        "SLURMD_NODENAME": f"{RUN}-0",
    }


def test_variables_that_slurm_sets_only_if_they_are_said_are_not_there_otherwise() -> None:
    found = variables("--nodes=2")
    assert found.keys() & {"SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "SLURM_GPUS", "SLURM_MEM_PER_NODE"} == set()
    assert variables("--ntasks=4", "--ntasks-per-node=3")["SLURM_TASKS_PER_NODE"] == "3(x2)"
    assert variables("--ntasks=3", "--nodes=2")["SLURM_TASKS_PER_NODE"] == "2,1"


def test_the_script_is_as_it_was_and_runs_by_its_interpreter() -> None:
    spec, notes = noted("--nodes=2", "--ntasks-per-node=2", body='echo once on $SLURM_NNODES "$@"')
    assert run_pod(spec).stdout == "once on 2\n"
    assert notes == ["train.sh: 2 pods with 2(x2) tasks"]


@pytest.mark.parametrize("named", ["${BASH_SOURCE[0]}", "${BASH_SOURCE}", "$BASH_SOURCE"])
@pytest.mark.parametrize("length", [0, 40_000], ids=["short", "long"])
def test_a_script_that_asks_bash_for_its_file_gets_the_one_that_is_called(named: str, length: int) -> None:
    """Many begin only so: a strict one ended at once, and a guarded one did nothing, in silence."""
    guarded = f'set -u\nif [[ "{named}" == "$0" ]]; then echo "begins in $(dirname "{named}")"; fi\n#{"x" * length}'
    assert run_pod(noted("--nodes=2", body=guarded)[0]).stdout == "begins in .\n"


@pytest.mark.parametrize("first", ["#!/bin/bash -l", "#!/bin/bash --login", "#!/usr/bin/env bash -el", "#!/bin/bash"])
def test_a_login_shell_finds_srun_though_its_profile_sets_path_anew(first: str, tmp_path: Path) -> None:
    """Many sites' scripts begin so, for `module`; every `srun` of theirs was a command that is not found."""
    for folder, name in (("bin", "srun"), ("image", "train")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text("#!/bin/sh\n")
        (tmp_path / folder / name).chmod(0o755)
    words = pods.command_with_steps(f"{first}\ncommand -v srun\ncommand -v train\n", "train.sh").words
    found = dict.fromkeys(("PATH", "TESSERA_STEPS_PATH"), f"{tmp_path}/bin:{tmp_path}/image:/usr/bin:/bin")
    done = subprocess.run(words, env=found, capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path}/bin/srun\n{tmp_path}/image/train\n"


@pytest.mark.parametrize("arguments", ["", "one"])
@pytest.mark.parametrize(
    "asks",
    [
        'cd "$(dirname "$0")"',
        'cd "${BASH_SOURCE[0]%/*}"',
        'cd "$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"',
        'cd "$(dirname "$(readlink -f "${BASH_SOURCE:-$0}")")"',
        'here() { cd "${BASH_SOURCE[0]%/*}"; }; here',
        'cd "$(dirname "$(realpath "${BASH_SOURCE[-1]}")")"',
        "cd ${0%/*}",
    ],
)
def test_a_script_that_asks_for_its_own_folder_stays_where_the_pod_begins_and_is_told(
    asks: str, arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was in /bin, or nowhere, in silence."""
    monkeypatch.chdir(tmp_path)
    spec, notes = noted("--nodes=2", body=f"set -eu\n{asks}\npwd; source ./helper.sh", line=arguments)
    (tmp_path / "helper.sh").write_text("echo helps\n")
    assert run_pod(spec).stdout == f"{tmp_path}\nhelps\n"
    assert any("the one in which the pod begins" in note and ":5: " in note for note in notes), notes


@pytest.mark.parametrize(
    ("signal", "warning"), [("B:USR1@120", "B:USR1"), ("USR2@60", "USR2"), ("B:TERM@60", "B:TERM")]
)
def test_the_runner_is_told_whom_a_warning_is_for(signal: str, warning: str) -> None:
    spec, _ = noted("--nodes=2", f"--signal={signal}")
    assert spec.roles[0].template.env["TESSERA_STEPS_WARNING"] == warning
    assert spec.roles[0].template.command[0] == "/bin/bash"


@pytest.mark.parametrize(
    "body",
    [
        "srun -n1 a : -n3 b",
        'export MASTER_ADDR=$(hostname)\nexport MASTER_PORT=$(shuf -n 1)\nsrun -w "$second" python x',
        "mpirun -np 8 ./allreduce",
        "srun --mpi=pmi2 ./allreduce",
        "timeout 20 srun -n 2 python3 -V",
        "ssh $host nvidia-smi",
        "srun --multi-prog file &\nsrun --exact -n1 x &\nwait",
        "python x",
        "trap 'scontrol requeue $SLURM_JOB_ID; exit 0' USR1\nsrun x & wait",
        "scontrol show job $SLURM_JOB_ID | grep TimeLimit; squeue -h -j $SLURM_JOB_ID -o %L; scancel $SLURM_JOB_ID",
        "srun bash -c 'echo $SLURM_STEP_ID $SLURM_TASK_PID $SLURM_LAUNCH_NODE_IPADDR'",
    ],
)
def test_what_a_script_does_once_or_by_steps_needs_no_note(body: str) -> None:
    _, notes = noted("--nodes=2", body=body)
    assert notes == ["train.sh: 2 pods with one task each"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("srun -t 10 x", "train.sh:4: srun -t 10: write timeout SECONDS srun; or say --ignore srun"),
        ("srun --mpi=pmix x", "train.sh:4: srun --mpi=pmix: start it by mpirun, which starts its ranks by steps"),
        ("srun --no-such x", "train.sh:4: srun --no-such=x: no step in a script has it here: delete it"),
        ("scontrol update JobId=7 TimeLimit=9", "train.sh:4: scontrol update JobId=7: only show job, show hostnames"),
    ],
)
def test_what_no_step_honours_is_refused_by_its_line(body: str, said: str) -> None:
    with pytest.raises(Failure) as raised:
        noted("--nodes=2", body=body)
    assert str(raised.value).startswith(said)


def test_the_options_that_are_known_before_a_step_runs_are_the_runners_own() -> None:
    rows = re.findall(r"^\| (`-.*) \| (honoured|true anyway|told|refused) \|", PAGE.read_text(), re.MULTILINE)
    kinds = {name: kind for names, kind in rows for name in re.findall(r"`--([\w-]+)`", names)}
    assert {name for name, kind in kinds.items() if kind == "refused"} == REFUSED_BY_RUNNER.keys()
    assert {name for name, kind in kinds.items() if kind != "refused"} == TAKEN_BY_RUNNER


def test_numbers_that_do_not_fit_each_other_are_told_together() -> None:
    with pytest.raises(Failure) as raised:
        noted("--nodes=3", "--gpus=8", "--gpus-per-task=1", "--ntasks=9", "--ntasks-per-node=2")
    assert "9 tasks do not lie on 3 nodes with 2 of them each" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "body", "needs"),
    [
        ((), "python train.py", False),
        (("--gpus=2", "-c 4"), "torchrun train.py", False),
        (("--nodes=1",), "python train.py", True),
        ((), "srun python train.py", True),
        ((), "mpirun -np 4 x", True),
        ((), "python train.py || scancel $SLURM_JOB_ID", True),
    ],
)
def test_a_script_of_one_task_that_starts_none_has_a_plain_pod(
    options: tuple[str, ...], body: str, needs: bool
) -> None:
    assert needs_steps(read(*options, body=body)) is needs


def test_a_task_for_each_gpu_is_refused_where_a_task_is_a_pod() -> None:
    made = read("--gpus=2", "--ntasks-per-gpu=2")
    against = Against(made)
    job_of(made, "train:1", HERE, NOON, against)
    assert "two do not share a GPU" in str(against.error)


# -- what public scripts taught ---------------------------------------------------------------------------------------


def test_a_comment_that_is_indented_does_not_end_the_options() -> None:
    made = read("--mem=16G    # more than before:", body=" \t # features stay in memory\n#SBATCH --time=30\ntrue")
    assert made.options == {"mem": "16G", "time": "30"}
    assert read(body="  true # a command\n#SBATCH --time=30").options == {}


@pytest.mark.parametrize(
    ("tasks", "step"), [("8,18,28", "1"), ("2,4", "1"), ("1-3,7", "1"), ("0-4:2", "2"), ("0-4:2,8%2", "2"), ("5", "1")]
)
def test_the_step_of_an_array_is_the_one_that_is_written(tasks: str, step: str) -> None:
    assert variables(f"--array={tasks}")["SLURM_ARRAY_TASK_STEP"] == step


def test_a_script_without_tasks_has_no_variable_that_it_does_not_say() -> None:
    _, env = pod_of(job("--gpus-per-node=4", "--cpus-per-task=4", "--mem=16000M", body="python train.py"))
    assert (
        env.keys() & {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_GPUS", "SLURM_GPUS_PER_TASK"}
        == set()
    )
    said = {"SLURM_GPUS_PER_NODE": "4", "SLURM_GPUS_ON_NODE": "4", "SLURM_JOB_GPUS": "0,1,2,3"}
    assert env.items() >= (said | {"SLURM_MEM_PER_NODE": "16000"}).items()


def test_gpus_of_the_pod_are_told_in_the_variable_that_programs_read() -> None:
    """The first is a script on a pod of its own, the second one with steps: both begin as with Slurm."""
    _, alone = pod_of(job("--gpus-per-node=4", body="python train.py"))
    _, first = pod_of(noted("--nodes=2", "--gpus=4")[0])
    _, without = pod_of(noted("--nodes=2")[0])
    assert [env.get("CUDA_VISIBLE_DEVICES") for env in (alone, first, without)] == ["0,1,2,3", "0,1", None]


def test_how_tasks_divide_gpus_reaches_their_steps() -> None:
    found = variables("--nodes=2", "--gpus-per-node=4", "--ntasks-per-gpu=2", "--gpu-bind=single:2")
    assert found.items() >= {"SLURM_NTASKS_PER_GPU": "2", "SLURM_GPU_BIND": "single:2"}.items()
    with pytest.raises(Failure, match="write none, closest"):
        job("--nodes=2", "--gpus-per-node=4", "--gpu-bind=nearest")


def test_a_task_that_is_a_pod_is_told_that_it_sees_its_own_gpus_alone() -> None:
    made = read("--ntasks=2", "--gpus-per-task=1", "--gpu-bind=none", "--spread-tasks")
    job_of(made, "train:1", HERE, NOON, against := Against(made))
    assert any("--gpu-bind is passed over" in note for note in against.notes)


def test_cpus_of_a_gpu_are_a_variable_where_they_are_said() -> None:
    assert variables("--nodes=2", "--gpus-per-node=4", "--cpus-per-gpu=16")["SLURM_CPUS_PER_GPU"] == "16"


@pytest.mark.parametrize(
    ("options", "cpu_milli", "gib"),
    [
        (("--ntasks-per-node=10", "--mem-per-cpu=8G", "--gres=gpu"), 10_000, 80),
        (("--ntasks=36", "--gpus-per-node=1", "-N1"), 36_000, 0),
        (("--ntasks-per-node=4", "--gpus-per-node=4", "--mem-per-cpu=1G"), 0, 4),
        (("--ntasks=36", "--gpus-per-node=1", "-N1", "--overcommit"), 0, 0),
        (("--ntasks=36", "-N1", "-O"), 1_000, 0),
    ],
)
def test_tasks_beside_few_gpus_have_a_cpu_each(options: tuple[str, ...], cpu_milli: int, gib: int) -> None:
    (role,) = noted(*options)[0].roles
    assert (role.resources.cpu_milli, role.resources.memory_bytes) == (cpu_milli, gib * GIB)


@pytest.mark.parametrize("name", ["sbatch", "salloc"])
def test_a_script_that_submits_others_is_refused_with_the_way_out(name: str) -> None:
    assert f"train.sh:3: {name}: is not there in a pod; " in wrong(body=f"{name} next.sh")
    assert "--dependency" in wrong(body=f"{name} next.sh")
