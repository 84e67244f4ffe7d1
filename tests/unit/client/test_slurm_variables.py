"""Variables in batch scripts: pods have them, or a note says by name and line that they do not."""

import subprocess

import pytest

from tessera.client.slurm.scripts.in_variables import variables_lost
from tessera.client.slurm.scripts.options import split_words
from tessera.client.slurm.scripts.script import preset, read_script
from tests.unit.client.slurm_builders import pod_of, run_as, run_pod, script, spec_of


def told(body: str, *here: str) -> list[str]:
    """Notes about a script whose pods have SLURM_NTASKS, as `line: what`; the body begins at line 1."""
    found = variables_lost(f"#!/bin/bash\n{body}", {"SLURM_NTASKS"}, here)
    return [f"{each.line - 1}: {each.said}" for each in found if not each.refused]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("x $SLURM_NTASKS\ny ${SLURM_JOB_ACCOUNT} $SLURM_JOB_ACCOUNT", "2: $SLURM_JOB_ACCOUNT: no pod has it"),
        ('cd "$SLURM_SUBMIT_DIR"', "1: $SLURM_SUBMIT_DIR: is the directory in which the pod begins"),
        ("\nx --data $DATA", "2: $DATA: is set here and not in pods; say --export=DATA"),
        ("CONFIG=${CONFIG:-small}; x $CONFIG", "1: $CONFIG: is set here and not in pods; say --export=CONFIG"),
    ],
)
def test_what_a_script_reads_and_no_pod_has_is_told_once(body: str, said: str) -> None:
    (found,) = told(body, "DATA", "CONFIG")
    assert found.startswith(said)


@pytest.mark.parametrize(
    "body",
    [
        "x ${SLURM_CLUSTER_NAME:-none} $SLURM_NTASKS",
        "# x $SLURM_JOB_USER $DATA",
        "export SLURM_CPU_BIND=cores; x $SLURM_CPU_BIND",
        "DATA=/data; x $DATA; for CONFIG in a b; do y $CONFIG; done",
        "while read DATA; do x $DATA; done",
        "x $HOME $OTHER $SLURM_RESTART_COUNT",
    ],
)
def test_what_pods_have_or_the_script_says_itself_is_not_told(body: str) -> None:
    assert told(body, "DATA", "CONFIG", "HOME") == []


def test_a_script_of_python_is_not_read_as_a_shell_would() -> None:
    assert list(variables_lost("#!/usr/bin/python3\nprint('$SLURM_JOB_USER')", (), ())) == []


def test_a_pod_knows_its_node_its_cpus_and_its_directory() -> None:
    own = 'scontrol show hostnames | grep -x "$SLURMD_NODENAME"; [ "$SLURM_SUBMIT_DIR" = "$PWD" ] && echo here'
    said = run_as(
        1,
        f"{own}; echo $SLURM_CPUS_ON_NODE $SLURM_JOB_CPUS_PER_NODE $SLURM_TASKS_PER_NODE # srun",
        options=("--cpus-per-task=6",),
    )
    name = f"{'j' * 20}-1-1.run-{'j' * 20}-1"
    assert said.splitlines() == [name, "here", "6 6 1(x2)"]


@pytest.mark.parametrize(("attempt", "said"), [(1, "0"), (3, "2")])
def test_a_script_that_runs_again_knows_how_often(attempt: int, said: str) -> None:
    spec = spec_of(read_script(script(body='echo "${SLURM_RESTART_COUNT:-0}"'), "train.sh"))
    command, env = pod_of(spec, attempt=attempt)
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout == f"{said}\n"


def test_only_a_run_after_the_first_has_the_count_as_with_slurm() -> None:
    spec = spec_of(read_script(script(body="set -u; echo ${SLURM_RESTART_COUNT-none}"), "train.sh"))
    assert run_pod(spec).stdout == "none\n"


def test_variables_of_the_shell_go_before_the_script_and_behind_the_command_line() -> None:
    here = {"SBATCH_PARTITION": "night", "SBATCH_TIMELIMIT": "30", "SBATCH_GRES": "gpu:2", "SBATCH_NODES": "9"}
    said, _ = split_words(["--partition=day"])
    made = read_script(script("--time=10", "--gpus=8"), "train.sh", (), [*preset("sbatch", here), *said])
    assert made.options == {"partition": "day", "time": "30", "gres": "gpu:2"}


def test_a_variable_that_nothing_honours_is_refused_by_its_option() -> None:
    asked = preset("salloc", {"SALLOC_RESERVATION": "maintenance", "SALLOC_EXCLUSIVE": "1", "SBATCH_QOS": "high"})
    made = read_script(script(), "train.sh", (), asked)
    assert [reason.field for reason in made.against] == ["--reservation"]
    assert made.options == {"exclusive": "yes"}


def test_an_empty_variable_and_those_of_srun_say_nothing() -> None:
    assert preset("sbatch", {"SBATCH_ACCOUNT": ""}) == preset("srun", {"SLURM_PARTITION": "night"}) == []
