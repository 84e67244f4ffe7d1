"""What public scripts and our own examples taught of steps: a real Slurm (22.05) beside the same lines is the judge."""

from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "slurm"
RECORD = """#!/bin/sh
echo "${0##*/} $*" >>"$CALLS"
"""
JOB = {"SLURM_JOB_NODELIST": "127.88.0.[0-1]", "SLURM_NNODES": "2"}


def test_a_task_knows_the_cpus_of_its_step_alone(pods):
    script = """
srun -n1 --exact bash -c 'echo one $SLURM_CPUS_ON_NODE'
srun -n2 -N1 -c2 bash -c 'echo four $SLURM_CPUS_ON_NODE'
srun -n1 bash -c 'echo whole $SLURM_CPUS_ON_NODE'
echo script $SLURM_CPUS_ON_NODE
"""
    with pods(1, script) as run:
        _, out, _ = run.ended()
    assert out.splitlines() == ["one 1", "four 4", "four 4", "whole 4", "script 4"]


def test_a_task_alone_in_its_pod_sees_the_gpus_of_the_jobs_own_number(pods):
    script = """
srun -n1 --gpus-per-task=1 bash -c 'echo $CUDA_VISIBLE_DEVICES $SLURM_GPUS_ON_NODE'
srun -n1 --gres=gpu:1 bash -c 'echo $CUDA_VISIBLE_DEVICES $SLURM_GPUS_ON_NODE'
srun -n1 --gres=none bash -c 'echo "none:$CUDA_VISIBLE_DEVICES" $SLURM_GPUS_ON_NODE'
srun -n2 --gpu-bind=map_gpu:0,9 bash -c 'echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES' 2>&1 | sort
"""
    with pods(1, script, {"SLURM_GPUS_ON_NODE": "4", "SLURM_GPUS_PER_NODE": "4"}) as run:
        _, out, _ = run.ended()
    lines = out.splitlines()
    assert lines[:5] == ["0,1,2,3 4", "0 1", "none: 0", "0 0", "1 0"]
    assert lines[5].startswith("srun: Warning: task 1: its pod has 4 GPUs of the step")


def calls_of(pods, folder: Path, name: str, count: int, **variables: str) -> list[str]:
    """The lines with which the script calls programs, in their order as text."""
    stubs, calls = folder / "stubs", folder / "calls"
    stubs.mkdir()
    for program in ("python", "torchrun"):
        (stubs / program).write_text(RECORD)
        (stubs / program).chmod(0o755)
    script = f"export PATH={stubs}:$PATH CALLS={calls}\n{(EXAMPLES / name).read_text()}"
    with pods(count, script, JOB | variables) as run:
        assert run.ended()[0] == 0
    return sorted(calls.read_text().splitlines())


def test_each_rank_of_the_example_is_another_one(pods, tmp_path):
    found = calls_of(pods, tmp_path, "ranks.sh", 2, SLURM_NTASKS="8", SLURM_TASKS_PER_NODE="4(x2)")
    ranks = [f"python train.py --rank {rank} --world-size 8 --local-rank {rank % 4}" for rank in range(8)]
    assert found == ranks


def test_each_torchrun_of_the_example_is_another_node(pods, tmp_path):
    found = calls_of(pods, tmp_path, "torchrun.sh", 2, SLURM_NTASKS="2", SLURM_GPUS_ON_NODE="4")
    assert [line.partition("--node-rank ")[2] for line in found] == [
        f"{node} --master-addr 127.88.0.0 --master-port 29500 train.py" for node in range(2)
    ]
