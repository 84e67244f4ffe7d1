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
