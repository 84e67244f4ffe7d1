"""Variables in batch scripts: pods have them, or a note says by name and line that they do not."""

import subprocess

import pytest

from tessera.client.slurm.scripts.against import Against
from tessera.client.slurm.scripts.in_variables import variables_lost
from tessera.client.slurm.scripts.jobs import job_of
from tessera.client.slurm.scripts.options import split_words
from tessera.client.slurm.scripts.script import preset, read_script
from tests.unit.client.slurm_builders import NOON, pod_of, run_as, run_pod, script, spec_of

HERE = {"DATA": "/data", "CONFIG": "large", "HOME": "/home/me", "PYTHONPATH": "/src", "SWEEP_ID": "a$(b)"}
HERE |= {"WANDB_API_KEY": "secret", "MYPATH": "/opt", "LONG": "x" * 2000}


def told(body: str) -> list[str]:
    """Notes about a script whose pods have SLURM_NTASKS, as `line: what`; the body begins at line 1."""
    found = variables_lost(f"#!/bin/bash\n{body}", {"SLURM_NTASKS"})
    return [f"{each.line - 1}: {each.said}" for each in found if not each.refused]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("x $SLURM_NTASKS\ny ${SLURM_JOB_ACCOUNT} $SLURM_JOB_ACCOUNT", "2: $SLURM_JOB_ACCOUNT: no pod has it"),
        ('cd "$SLURM_SUBMIT_DIR"', "1: $SLURM_SUBMIT_DIR: is the directory in which the pod begins"),
    ],
)
def test_what_a_script_reads_and_no_pod_has_is_told_once(body: str, said: str) -> None:
    (found,) = told(body)
    assert found.startswith(said)


@pytest.mark.parametrize(
    "body",
    [
        "x ${SLURM_CLUSTER_NAME:-none} $SLURM_NTASKS",
        "# x $SLURM_JOB_USER $DATA",
        "export SLURM_CPU_BIND=cores; x $SLURM_CPU_BIND",
        "x $HOME $OTHER $SLURM_RESTART_COUNT",
    ],
)
def test_what_pods_have_or_the_script_says_itself_is_not_told(body: str) -> None:
    assert told(body) == []


def test_a_script_of_python_is_not_read_as_a_shell_would() -> None:
    assert list(variables_lost("#!/usr/bin/python3\nprint('$SLURM_JOB_USER')", ())) == []


def taken_along(text: str, *options: str) -> tuple[dict[str, str], list[str]]:
    """Variables of the submitting shell that the pods of a script get, and what is noted."""
    made = read_script(text, "train.sh", (), split_words(options)[0])
    against = Against(made)
    env = job_of(made, "train:1", HERE, NOON, against)["roles"][0]["template"]["env"]
    assert against.error is None
    return {name: value for name, value in env.items() if name in HERE}, against.notes


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("\nx --data $DATA", ["DATA"]),
        ("CONFIG=${CONFIG:-small}; x $CONFIG", ["CONFIG"]),
        ("DATA=/data; x $DATA; for CONFIG in a b; do y $CONFIG; done", []),
        ("while read DATA; do x $DATA; done", []),
        ("# x $DATA\nx $HOME $PYTHONPATH $OTHER", []),
    ],
)
def test_what_a_script_reads_and_does_not_set_goes_along_as_with_slurm(body: str, names: list[str]) -> None:
    found, notes = taken_along(script(body=body))
    assert sorted(found) == names
    assert [note.partition("$")[2].partition(":")[0] for note in notes] == names
    assert taken_along(script(body=body), "--export=ALL")[0] == found


def test_the_value_is_literal_and_a_script_of_python_reads_its_own_way() -> None:
    text = "#!/usr/bin/python3\nimport os\nprint(os.environ['SWEEP_ID'], os.getenv(\"DATA\"), '$CONFIG')\n"
    found, notes = taken_along(text)
    assert found == {"SWEEP_ID": "a$$(b)", "DATA": "/data"}
    assert notes == [
        f"train.sh:3: ${name}: goes along as it is here, as with Slurm; --export=NONE leaves it out"
        for name in ("SWEEP_ID", "DATA")
    ]


def test_secrets_paths_and_long_values_stay_here_by_name_unless_they_are_asked_for() -> None:
    text = script(body="x $WANDB_API_KEY $MYPATH $LONG $DATA")
    found, notes = taken_along(text)
    assert sorted(found) == ["DATA"]
    assert [note.partition("handed on: ")[2] for note in notes if "handed on" in note] == [
        "it looks like a secret; say --export=ALL,WANDB_API_KEY for it",
        "it names places of this machine; say --export=ALL,MYPATH for it",
        "its value is long, or not printable; say --export=ALL,LONG for it",
    ]
    assert sorted(taken_along(text, "--export=ALL,WANDB_API_KEY")[0]) == ["DATA", "WANDB_API_KEY"]


@pytest.mark.parametrize("said", ["NONE", "CONFIG"])
def test_nothing_goes_along_where_export_names_others(said: str) -> None:
    assert "DATA" not in taken_along(script(body="x $DATA"), f"--export={said}")[0]


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
    asked = preset("salloc", {"SALLOC_NETWORK": "sn_all", "SALLOC_EXCLUSIVE": "1", "SBATCH_QOS": "high"})
    made = read_script(script(), "train.sh", (), asked)
    assert [reason.field for reason in made.against] == ["--network"]
    assert made.options == {"exclusive": "yes"}


def test_an_empty_variable_and_those_of_srun_say_nothing() -> None:
    assert preset("sbatch", {"SBATCH_ACCOUNT": ""}) == preset("srun", {"SLURM_PARTITION": "night"}) == []
