"""
OpenMPI and MPICH start their daemons in the other pod through the agent, and eight ranks add up.

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


@pytest.mark.parametrize("kind", LAUNCHES)
def test_eight_ranks_in_two_pods_add_up(pods, program: Path, tmp_path: Path, kind: str):
    if shutil.which(f"mpicc.{kind}") is None or shutil.which(f"mpirun.{kind}") is None:
        pytest.skip(f"no {kind} with its compiler here")
    subprocess.run([f"mpicc.{kind}", Path(__file__).with_name("allreduce.c"), "-o", tmp_path / "allreduce"], check=True)
    agent = tmp_path / "agent"
    ssh = program.parents[1] / "fallback" / "ssh"
    agent.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\nexec {ssh} "$@"\n')
    agent.chmod(0o755)
    with pods(2, f"{LAUNCHES[kind].format(agent=agent)} {tmp_path}/allreduce") as run:
        code, out, err = run.ended()
    assert code == 0, err
    assert sorted(out.splitlines()) == sorted(f"{rank} of 8: 36" for rank in range(8))
    assert "127.88.0.1" in (tmp_path / "asked").read_text()
