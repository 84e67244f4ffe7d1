"""What public scripts taught of steps: a real Slurm (22.05) beside the same lines is the judge."""


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
