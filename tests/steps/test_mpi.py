"""
mpirun starts its daemons in the other pod by ssh or, where Slurm's variables are set, by srun; srun alone serves PMI.

`make mpi` installs OpenMPI, MPICH and Intel MPI; where a machine has none, the tests are skipped, but in CI.
"""

from pathlib import Path

import pytest

from tests.steps.pods import compile_with_mpi

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
    compile_with_mpi(kind, Path(__file__).with_name("allreduce.c"), compiled)
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


@pytest.mark.parametrize("allreduce", ["mpich", "intel"], indirect=True)
def test_srun_alone_starts_what_speaks_pmi(pods, allreduce: tuple[str, Path]):
    _, compiled = allreduce
    with pods(2, f"srun -l --mpi=pmi2 {compiled}", OF_SLURM) as run:
        code, out, err = run.ended()
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [f"{rank}: {rank} of 8: 36" for rank in range(8)]


@pytest.mark.parametrize("allreduce", ["mpich"], indirect=True)
def test_ranks_find_each_other_however_they_are_laid_on_pods(pods, allreduce: tuple[str, Path]):
    _, compiled = allreduce
    script = f"""
srun --mpi=pmi2 -n3 -m cyclic {compiled} | sed 's/^/cyclic /'
SLURM_MPI_TYPE=pmi2 srun -n1 {compiled} : -n3 {compiled} | sed 's/^/parts /'
"""
    with pods(2, script, OF_SLURM) as run:
        code, out, err = run.ended()
    assert (code, err) == (0, "")
    cyclic, parts = [f"cyclic {rank} of 3: 6" for rank in range(3)], [f"parts {rank} of 4: 10" for rank in range(4)]
    assert sorted(out.splitlines()) == [*cyclic, *parts]


ASK = 'ask() { echo "$1" >&$PMI_FD; read -r answer <&$PMI_FD; }; ask "cmd=init pmi_version=1 pmi_subversion=1"; '


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("[ $PMI_RANK = 0 ] || ask cmd=barrier_in", "task 0 ended between MPI_Init and MPI_Finalize"),
        ("[ $PMI_RANK = 0 ] && kill -KILL $$; ask cmd=barrier_in", "task 0 ended between MPI_Init and MPI_Finalize"),
        ("ask mcmd=spawn", 'asks for "mcmd=spawn", which a step does not serve: start the program by mpirun'),
        ("ask 'cmd=init pmi_version=2'", "speaks PMI 2, where a step serves PMI 1: start the program by mpirun"),
    ],
)
def test_a_step_whose_tasks_would_wait_for_ever_says_why_and_ends(pods, task: str, why: str):
    with pods(2, f"srun --mpi=pmi2 -n4 bash -c '{ASK}{task.replace(chr(39), chr(34))}'", OF_SLURM) as run:
        code, _, err = run.ended()
    assert code != 0
    assert why in err
    assert "Terminating StepId=5.0" in err


def test_who_never_began_keeps_nobody_waiting(pods, tmp_path: Path):
    script = f"srun --mpi=pmi2 -n2 bash -c '[ $PMI_RANK = 0 ] && exit; {ASK} ask cmd=barrier_in'"
    with pods(2, script, OF_SLURM) as run:
        code, _, err = run.ended()
    assert code != 0
    assert "others wait in MPI for task 0, which has ended" in err


def test_a_task_asks_for_what_the_others_have_put_down(pods):
    task = f"""{ASK}
ask "cmd=put kvsname=step key=card-$PMI_RANK value=at host=$PMI_RANK"; ask cmd=barrier_in
ask "cmd=get kvsname=step key=card-$((1 - PMI_RANK))"; echo "$PMI_RANK: $answer"
ask "cmd=get kvsname=step key=none"; echo "$PMI_RANK: $answer"
ask cmd=get_universe_size; echo "$PMI_RANK: $answer"; ask cmd=finalize; echo "$PMI_RANK: $answer"
"""
    with pods(2, f"srun --mpi=pmi2 -n2 bash -c '{task}'", OF_SLURM) as run:
        code, out, err = run.ended()
    assert code == 0, err
    assert sorted(out.splitlines()) == sorted(
        f"{rank}: cmd={answer}"
        for rank in (0, 1)
        for answer in (
            f"get_result rc=0 msg=success value=at host={1 - rank}",
            "get_result rc=-1 msg=key_not_found value=unknown",
            "universe_size size=2",
            "finalize_ack",
        )
    )
