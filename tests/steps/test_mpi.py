"""
OpenMPI and MPICH start their daemons in the other pod by ssh or, where Slurm's variables are set, by srun.

Debian's packages openmpi-bin with libopenmpi-dev, mpich with libmpich-dev: skipped where a machine has none.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

# Names are addresses of loopback, which OpenMPI takes for its own machine's where it looks them up.
OPENMPI = "--allow-run-as-root --mca orte_do_not_resolve 1 --mca plm rsh --mca plm_rsh_agent {agent} --mca btl self,tcp"
LAUNCHES = {
    "openmpi": f"mpirun.openmpi {OPENMPI} --host 127.88.0.0:4,127.88.0.1:4 -np 8",
    "mpich": "mpirun.mpich -launcher ssh -launcher-exec {agent} -hosts 127.88.0.0:4,127.88.0.1:4 -n 8",
}


BY_SRUN = {
    "openmpi": "mpirun.openmpi --allow-run-as-root --mca orte_do_not_resolve 1 --mca btl self,tcp",
    "mpich": "mpirun.mpich -n 8",
}
OF_SLURM = {
    "SLURM_JOB_ID": "5",
    "SLURM_JOBID": "5",
    "SLURM_JOB_NODELIST": "127.88.0.[0-1]",
    "SLURM_NODELIST": "127.88.0.[0-1]",
    "SLURM_TASKS_PER_NODE": "4(x2)",
    "SLURM_NTASKS": "8",
    "SLURM_NNODES": "2",
    "SLURM_JOB_NUM_NODES": "2",
}


@pytest.fixture
def allreduce(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """The kind of MPI, and a program that was compiled with it."""
    kind, compiled = str(request.param), tmp_path / "allreduce"
    if shutil.which(f"mpicc.{kind}") is None or shutil.which(f"mpirun.{kind}") is None:
        pytest.skip(f"no {kind} with its compiler here")
    subprocess.run([f"mpicc.{kind}", Path(__file__).with_name("allreduce.c"), "-o", compiled], check=True)
    return kind, compiled


@pytest.mark.parametrize("allreduce", LAUNCHES, indirect=True)
def test_eight_ranks_in_two_pods_add_up(pods, program: Path, tmp_path: Path, allreduce: tuple[str, Path]):
    kind, compiled = allreduce
    agent = tmp_path / "agent"
    ssh = program.parent / "ssh"
    agent.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\nexec {ssh} "$@"\n')
    agent.chmod(0o755)
    with pods(2, f"{LAUNCHES[kind].format(agent=agent)} {compiled}") as run:
        code, out, err = run.ended()
    assert code == 0, err
    assert sorted(out.splitlines()) == [f"{rank} of 8: 36" for rank in range(8)]
    assert "127.88.0.1" in (tmp_path / "asked").read_text()


@pytest.mark.parametrize("allreduce", BY_SRUN, indirect=True)
def test_with_the_variables_of_slurm_mpirun_finds_srun_by_itself(pods, allreduce: tuple[str, Path]):
    kind, compiled = allreduce
    script = f"{BY_SRUN[kind]} {compiled} && srun -n1 bash -c 'echo step $SLURM_STEP_ID'"
    with pods(2, script, OF_SLURM) as run:
        code, out, err = run.ended()
    assert code == 0, err
    assert sorted(out.splitlines()) == [*(f"{rank} of 8: 36" for rank in range(8)), "step 1"]
