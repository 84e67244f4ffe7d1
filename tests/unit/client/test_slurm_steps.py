"""`srun` and `scontrol` in a batch script: run as meant, refused by name and line, or told in a note; never lost."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.client.slurm.scripts import srun
from tessera.client.slurm.scripts.against import Against, Tasks
from tessera.client.slurm.scripts.in_scripts import found_in, split_step
from tessera.client.slurm.scripts.jobs import job_of
from tessera.client.slurm.scripts.script import read_script
from tessera.client.slurm.scripts.shell_words import simple_commands
from tessera.client.slurm.scripts.srun import StepKind
from tests.unit.client.slurm_builders import HERE, NOON, run_as, run_pod, script, spec_of, wrong

RAY = """\
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head_node=${nodes[0]}
ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
srun --nodes=1 --ntasks=1 -w "$head_node" \\
  ray start --head --node-ip-address="$ip" --block &
python train.py"""


def refused(body: str, *, refused: bool = True) -> list[str]:
    """Refusals of a script of two nodes with four tasks each, as `line: what`; the body begins at line 1."""
    found = found_in(f"#!/bin/bash\n{body}", Tasks(8, 4))
    return [f"{each.line - 1}: {each.said}" for each in found if each.refused is refused]


def noted(body: str) -> list[str]:
    return refused(body, refused=False)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("srun --jobid 7 x", "srun --jobid=7: a script's steps are its own job's"),
        ("srun --container-image X y", "srun --container-image=X: a step runs in its pod"),
        ("srun -w gpu-1 x", "srun -w gpu-1: a step does not choose its pods"),
        ("srun -wgpu-1 x", "srun -w gpu-1: a step does not choose its pods"),
        ("srun -n1 a : -n3 b", "several programs in one step"),
        ("srun --multi-prog f", "srun --multi-prog: write roles"),
        ("srun --export=NONE x", "export NAME=VALUE before it"),
        ("srun -t 5 x", "srun -t 5: write timeout SECONDS"),
        ("srun -n 9 x", "srun -n 9: the job has 8"),
        ("srun --nodes 3 x", "srun --nodes=3: the job has 2"),
        ("srun --nodes=1-2 x", "write one number"),
        ("srun --mpi=pmix x", "MPI does not go beyond a pod"),
        ("srun --turbo x", "no step in a script has it"),
        ("srun -n1 a & srun -n1 b & wait", "srun … &: steps beside each other"),
        ("srun -N1 a &", "srun … &: steps beside each other"),
        ("exec srun x", "exec srun: no other program finds srun in a pod; leave exec out"),
        ("timeout 20 srun x", "timeout srun: no other program finds srun in a pod; write srun timeout …"),
        ("xargs -P4 srun -n1 x <list", "xargs srun: no other program finds srun in a pod; write an array (--array)"),
        ('step="srun -n8"; parallel -j 8 "$step x {}" ::: a b', "parallel srun: no other program finds srun in a pod"),
        ("step=srun; timeout 60 $step x", "timeout srun: no other program finds srun in a pod"),
        ("step='srun x'; $parallel ${step} ::: a b", "$parallel srun: no other program finds srun"),
        ("step='srun x'; bash -c \"$step\"", "srun within bash -c"),
        ('for h in $(scontrol show hostnames); do ssh $h "torchrun x" & done', "ssh: no pod lets another log in"),
        ("srun x; pdsh -w $SLURM_NODELIST y", "pdsh: no pod lets another log in"),
        ("A=1 /usr/bin/srun -x n y", "srun -x n: a step does not choose its pods"),
        ("bash -lc 'srun x'", "srun within bash -c"),
        ("trap 'touch saved; scontrol requeue $SLURM_JOB_ID' TERM; srun x", "scontrol requeue: is not there in a pod"),
        ("srun x; scontrol update job=1", "scontrol update: only show hostnames"),
        ("if ! srun -w a x; then y; fi", "srun -w a"),
        ('echo "$(srun -w "$a" x)"', "srun -w $a"),
        ("launch='srun -w a'; $launch x", "srun -w a"),
        ("f() { srun -w a x; }", "srun -w a"),
        ("mpirun -np 8 x", "mpirun: MPI does not go beyond a pod"),
        ("srun a; perf stat /opt/bin/mpirun -np 8 x", "mpirun: MPI does not go beyond a pod"),
        ("srun apptainer exec a.sif mpiexec x", "mpiexec: MPI does not go beyond a pod"),
        ("export SLURM_MPI_TYPE=pmix_v3\nsrun x", "SLURM_MPI_TYPE: MPI does not go beyond a pod"),
        (
            "torchrun --standalone --nproc-per-node=gpu t.py",
            "torchrun --standalone: runs in the pod of each of 8 tasks",
        ),
        ("MASTER_ADDR=$(hostname -i)\nsrun x", "MASTER_ADDR=$(hostname): is another one in each pod"),
        ("export head_node=`hostname`\nsrun x", "the first pod's address is $(scontrol show hostnames | head -n 1)"),
        ('srun -w "$h" hostname -I', "a step does not choose its pods; the first pod's address is"),
        ("ip=$(srun -N1 -n1 hostname -I)", "$(srun …): each pod would have the output of its own task alone, or none"),
        ('export ip="a $(srun -n1 x) b"', "$(srun …): each pod would have the output of its own task alone"),
        ("n=`srun -n1 nproc`; srun x", "run it without srun, which each pod then does"),
        ("srun $SRUN_ARGS --nodelist=a x", "srun --nodelist=a"),
        ("python t.py\n# srun is not needed", "python and what follows would run in the pod of each of 8 tasks"),
    ],
)
def test_what_a_pod_cannot_do_is_refused_by_its_name(line: str, said: str) -> None:
    found = refused(line)
    assert (found[0].startswith("1: "), said in found[0]) == (True, True), found


@pytest.mark.parametrize(
    "body",
    [
        "srun --jobid $SLURM_JOBID -N 2 --ntasks=8 torchrun t.py",
        "srun -l --exact --pty bash -c 'echo : ; exec true'",
        "srun --export=ALL --chdir /x python -w a",
        "# srun -w a\necho srun -w; srun x",
        "cat <<EOF >x\nsrun -w a\nEOF\nsrun x",
        "command -v srun && time srun x 2>&1 | tee log",
        "srun x & wait",
        'run() { echo "$*"; "$@"; }; run srun x',
        'step=\'srun x\'; echo "$step"; $step; eval "$step"',
        "torchrun t.py",
        "for ((i = 1; i < (2 * n); i++)); do srun x; done",
        'echo "began $(date "+%F") on $(hostname)"; srun x',
        "module load openmpi; echo mpirun; srun x `pwd` y",
        "srun bash -c 'MASTER_ADDR=$(hostname) x'",
        "SLURM_MPI_TYPE=none; torchrun --nproc_per_node=gpu t.py",
        'for h in $(scontrol show hostname $SLURM_NODELIST); do srun x "$h"; done',
    ],
)
def test_what_means_the_same_in_pods_is_taken_in(body: str) -> None:
    assert refused(body) == []


def test_what_changes_nothing_but_where_to_look_is_told_in_a_note() -> None:
    assert noted("srun -c 4 --gpus-per-task=1 -o log x") == [
        "1: srun -c, --gpus-per-task: a task has the CPU, the memory and the GPUs of its pod",
        "1: srun -o: it is in the pods' logs; write > FILE for one in a volume",
    ]
    assert noted("srun -n1 a\nsrun b") == ["1: srun: the pods of other tasks do not wait for this step"]
    assert noted("srun a; squeue --me; scontrol show job 1") == [
        "1: squeue: is not there in a pod, so it fails",
        "1: scontrol show job: only show hostnames is there in a pod",
    ]


def test_what_each_pod_would_make_for_itself_is_told_once() -> None:
    body = "export MASTER_ADDR=$(hostname)\nexport MASTER_PORT=$(shuf -i 2-9 -n 1)\nsrun python3 t.py"
    assert noted(body) == ["1: hostname: runs in every pod, beside srun"]
    assert found_in(f"#!/bin/bash\n{body}", Tasks(1)) == []


def test_what_no_pod_brings_along_is_told_once_for_each() -> None:
    assert noted("\nmodule purge\nmodule load cuda\nconda activate a; srun x") == [
        "2: module: software is the image's: no pod has a cluster's modules",
        "4: conda: environments are the image's: none of this machine is in a pod",
    ]


def test_an_output_of_all_tasks_is_each_pods_own() -> None:
    assert noted("srun hostname | sort > hosts") == ["1: srun … | sort: each pod has the output of its own task alone"]
    assert noted("srun x 2>&1 | tee log") == []


def test_more_processes_than_a_pod_has_gpus_are_refused() -> None:
    body = "#!/bin/bash\n\ntorchrun --nproc_per_node 4 t.py"
    (found,) = found_in(body, Tasks(4, 4, 1))
    assert (found.line, found.said.partition(";")[0]) == (
        3,
        "torchrun --nproc_per_node 4: runs in the pod of each of 4 tasks, with 1 GPUs",
    )
    assert found_in(body, Tasks(4, 1, 4)) == found_in(body, Tasks(1, 1, 1)) == []


def test_one_pod_may_log_in_elsewhere() -> None:
    assert found_in("#!/bin/bash\nssh -N -L 8888:localhost:8888 login &", Tasks(1)) == []


def test_rays_way_to_start_is_refused_line_by_line() -> None:
    said = wrong("--nodes=2", "--ntasks-per-node=1", body=RAY)
    assert "train.sh:7: srun -w $head_node" in said
    assert "train.sh:8: srun -w $head_node" in said
    assert said.count("or say --ignore srun") == 2


def test_what_is_ignored_knowingly_is_a_note() -> None:
    body = "srun -w a echo b; scontrol requeue || true"
    made = read_script(script("-n 2", body=body), "train.sh", ["srun", "scontrol"])
    against = Against(made)
    job_of(made, "train:1", HERE, NOON, against)
    assert against.error is None
    assert against.notes[0].startswith("train.sh:4: srun -w a: a step does not choose its pods")
    done = run_pod(spec_of(made))
    assert (done.stdout, done.stderr.partition(":")[0]) == ("b\n", "srun")


def test_a_script_of_python_with_several_tasks_is_asked_how_they_start() -> None:
    made = read_script("#!/usr/bin/python3\n#SBATCH -n 2\nprint()\n", "train.py")
    against = Against(made)
    job_of(made, "train:1", HERE, NOON, against)
    assert "would run in the pod of each of 2 tasks" in str(against.error)


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ("--nodes 1 --ntasks 1", 1),
        ("-N1", 2),
        ("-N 2 --ntasks-per-node=1", 2),
        ("--ntasks-per-node 1", 2),
        ("-N $SLURM_NNODES", 4),
        ("--jobid $SLURM_JOB_ID -c 2 --export=ALL --mpi none", 4),
        ("-lu --gpus-per-task 1 -n3", 3),
        ("--exclusive=user -K1 -W 5", 4),
    ],
)
def test_a_step_runs_in_the_pods_that_it_asks_for(words: str, ranks: int) -> None:
    asked = ("--nodes=2", "--ntasks-per-node=2")
    said = [run_as(rank, f"srun {words} echo ran", tasks=4, options=asked) for rank in range(4)]
    assert said == ["ran\n"] * ranks + [""] * (4 - ranks)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("$OPTION node echo ran", "srun: -w: a step in a script does not honour it"),
        ("--jobid $OTHER echo ran", "srun: --jobid: a step"),
        ("-n $MANY echo ran", "srun: 9: the job has 2 tasks, a pod for each"),
        ("-n $NONE echo ran", "srun: x: write one number"),
        ("echo $COLON x", "several programs in one step"),
        ("--label", "srun: nothing to run"),
        ("--chdir", "srun: --chdir has no value"),
        ("$SPACED 1 echo ran", "srun: --turbo: a step"),
    ],
)
def test_what_a_script_makes_only_as_it_runs_is_refused_in_the_pod(words: str, said: str) -> None:
    body = f"OPTION=-w OTHER=7 MANY=9 NONE=x COLON=: SPACED=--turbo\nsrun {words}"
    with pytest.raises(subprocess.CalledProcessError) as raised:
        run_as(0, body)
    assert (raised.value.stdout, said in raised.value.stderr) == ("", True), raised.value.stderr


def test_a_step_is_read_by_a_shell_that_stops_at_the_first_mistake() -> None:
    body = "set -eu\nsrun --label -N1 echo one\nsrun echo two\nscontrol || echo no"
    assert [run_as(rank, body) for rank in (0, 1)] == ["one\ntwo\nno\n", "two\nno\n"]
    with pytest.raises(subprocess.CalledProcessError) as raised:
        run_as(0, "set -eu\nsrun false\necho not reached")
    assert raised.value.stdout == ""


def test_a_step_runs_in_the_directory_that_it_says(tmp_path: Path) -> None:
    assert run_as(0, f"srun --chdir {tmp_path} pwd; srun -D /none true || pwd").splitlines() == [
        str(tmp_path),
        str(Path.cwd()),
    ]


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_function_reads_each_option_as_the_table_does(shell: str) -> None:
    for option in srun.STEP_OPTIONS:
        for name in (f"--{option.name}", *([f"-{option.short}"] if option.short else [])):
            words = [name, *([] if option.flag else ["1"]), "echo", "ran"]
            assert split_step(words)[1] == ["echo", "ran"]
            text = f'{srun.function(1, passes_over=False)}\nsrun "$@"'
            env = {"PATH": "/usr/bin:/bin", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "1"}
            done = subprocess.run(
                [shell, "-c", text, shell, *words], env=env, cwd="/", capture_output=True, text=True, check=False
            )
            refuses = option.kind is StepKind.REFUSED or option.name in ("export", "chdir")
            assert (done.stdout, bool(done.stderr)) == ("" if refuses else "ran\n", refuses), (words, done)


@given(st.text(alphabet="srun -w'\"`$(){}<>|&;\n\\#=a1", max_size=60))
def test_any_text_is_read_to_its_end(text: str) -> None:
    list(simple_commands(text))
    assert [each.words for each in simple_commands(f"# {'x'}\nsrun -w a b")] == [("srun", "-w", "a", "b")]


def test_a_command_knows_its_line() -> None:
    text = "a \\\n b\ncat <<'E'\nno\nE\nx=\"$(c\n  d)\" e &\n"
    assert [(each.line, each.words[0], each.background) for each in simple_commands(text)] == [
        (1, "a", False),
        (3, "cat", False),
        (6, "c", False),
        (7, "d", False),
        (7, "e", True),
    ]


def test_the_values_of_an_array_are_no_command_but_those_of_a_step() -> None:
    text = "a=(\n 1\n 2)\nb=($(c))\nlaunch=(srun -w n)\n"
    assert [(each.line, each.words) for each in simple_commands(text)] == [(4, ("c",)), (5, ("srun", "-w", "n"))]
