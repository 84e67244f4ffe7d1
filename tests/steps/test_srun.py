"""`srun` in the first of two to sixty-four pods: which tasks run where, with what, and how a step ends."""

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.steps.pods import PATIENCE_SECONDS, resident_kibibytes, wait_for

LINE = (
    """echo "$SLURM_STEP_ID n$SLURM_NODEID l$SLURM_LOCALID p$SLURM_PROCID of $SLURM_NTASKS on $SLURM_NNODES: $WHERE" """
)


def test_tasks_lie_on_the_pods_as_slurm_lays_them(pods):
    script = (
        f"srun -n 8 -w 127.88.0.1 bash -c '{LINE}'\nsrun -N1 -n2 -w 127.88.0.1 bash -c '{LINE}'\nsrun bash -c '{LINE}'"
    )
    with pods(2, script) as run:
        code, out, _ = run.ended()
    expected = [f"0 n{task // 4} l{task % 4} p{task} of 8 on 2: {task // 4}" for task in range(8)]
    expected += [
        "1 n0 l0 p0 of 2 on 1: 1",
        "1 n0 l1 p1 of 2 on 1: 1",
        "2 n0 l0 p0 of 2 on 2: 0",
        "2 n1 l0 p1 of 2 on 2: 1",
    ]
    assert code == 0
    assert sorted(out.splitlines()) == sorted(expected)


def test_a_task_has_the_environment_that_the_script_has_by_then_and_its_pods_own(pods):
    script = """
export MASTER_PORT=4711; unset UNWANTED
srun -N2 -n2 bash -c 'echo $SLURM_PROCID $MASTER_PORT ${UNWANTED-none} $TESSERA_RANK $WHERE; [ $$ = $SLURM_TASK_PID ]'
srun --export=NONE -n1 /usr/bin/env | grep -cE '^(MASTER_PORT|PATH)='
srun --export=NONE -n1 env; echo $?
srun --export=A=1,MASTER_PORT -n1 /usr/bin/env | grep -E '^(A|MASTER_PORT|PATH)='
srun --export=ALL,A=2 -n1 env | grep -E '^(A|MASTER_PORT)='
"""
    with pods(2, script, {"UNWANTED": "1"}) as run:
        _, out, err = run.ended()
    lines = out.splitlines()
    assert sorted(lines[:2]) == ["0 4711 none 0 0", "1 4711 none 1 1"]
    assert lines[2:4] == ["0", "2"]
    assert sorted(lines[4:6]) == ["A=1", "MASTER_PORT=4711"]
    assert sorted(lines[6:]) == ["A=2", "MASTER_PORT=4711"]
    assert "write the program's whole path" in err


def test_steps_in_the_background_run_at_once_each_on_its_part(pods):
    meet = "touch {own}; until [ -e {other} ]; do sleep 0.01; done; echo {own} $WHERE"
    script = f"""
srun -N1 -n1 --exact -w 127.88.0.1 bash -c '{meet.format(own="a", other="b")}' &
srun -N1 -n2 --exact -x 127.88.0.1 bash -c '{meet.format(own="b", other="a")}' &
wait
"""
    with pods(2, script) as run:
        _, out, _ = run.ended()
    assert sorted(out.splitlines()) == ["a 1", "b 0", "b 0"]


def test_a_step_waits_for_the_one_before_it_and_says_so(pods):
    script = """
srun -n1 bash -c 'touch begun; until [ -e go ]; do sleep 0.01; done; echo first' &
until [ -e begun ]; do sleep 0.01; done
srun -n1 echo second
wait
"""
    with pods(1, script) as run:
        first = run.pods[0]
        line = first.stderr.readline().decode()
        assert line.startswith(
            f"srun: Job {run.job} step creation temporarily disabled, retrying (Requested nodes are busy)"
        )
        run.path("go").touch()
        _, out, err = run.ended()
    assert out.splitlines() == ["first", "second"]
    assert "srun: Step created for job" in err


def test_several_programs_are_one_step(pods):
    script = f"""
srun -n1 bash -c '{LINE}' : -n3 bash -c '{LINE}'
printf '0 echo learner %%t\\n1-2 echo worker %%t %%o\\n' > programs
srun -n3 --multi-prog programs
"""
    with pods(2, script) as run:
        _, out, _ = run.ended()
    lines = out.splitlines()
    assert sorted(lines[:4]) == ["0 n0 l0 p0 of 4 on 2: 0", *(f"0 n1 l{n} p{n + 1} of 4 on 2: 1" for n in range(3))]
    assert sorted(lines[4:]) == ["learner 0", "worker 1 0", "worker 2 1"]


def test_the_highest_exit_code_is_the_steps_and_the_commands_the_runs(pods):
    script = """
srun -n2 bash -c 'exit $((SLURM_PROCID+3))'; echo $?
srun -n1 bash -c 'kill -TERM $$'; echo $?
srun -n1 nosuchprogram; echo $?
srun -n1 /etc/passwd; echo $?
srun -n9 true; echo $?
srun -n3 --mpi=pmix true; echo $?
srun -n1 -D /nosuch pwd
exit 7
"""
    with pods(2, script) as run:
        code, out, err = run.ended()
    assert code == 7
    assert out.splitlines() == ["4", "143", "2", "13", "1", "1", "/tmp"]
    assert "srun: error: 127.88.0.1: task 1: Exited with exit code 4" in err
    assert "srun: error: 127.88.0.0: task 0: Terminated" in err
    assert "execve(): nosuchprogram: No such file or directory" in err
    assert "More processors requested than permitted" in err
    assert "mpirun" in err


def test_one_failure_ends_the_step_where_that_was_asked_for(pods):
    script = """
srun -n2 -K bash -c 'if [ $SLURM_PROCID = 1 ]; then exit 5; fi; sleep 1000'; echo $?
srun -n2 -W 1 bash -c 'if [ $SLURM_PROCID = 0 ]; then sleep 1000; fi'; echo $?
"""
    with pods(2, script) as run:
        _, out, err = run.ended()
    assert out.splitlines() == ["143", "137"]
    assert "Terminating StepId=" in err


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT], ids=["term", "kill", "interrupt"])
def test_a_step_that_is_killed_leaves_no_task_behind(pods, how):
    script = """
set -m  # else a shell's background jobs ignore SIGINT
srun -n4 bash -c 'sleep 1000 & exec sleep 1001' &
echo $! > srun.part; mv srun.part srun.pid; wait $!; echo ended
until [ -e go ]; do sleep 0.01; done
"""
    with pods(2, script) as run:
        # A shell whose own child ends by itself takes SIGINT for that child's: so no shell is left to be asked.
        going = b"sleep\x001001"
        wait_for(lambda: sum(going in command_of(pid) for pid in run.tasks()) == 4, "four tasks")
        wait_for(lambda: run.path("srun.pid").exists(), "the number of srun")
        os.kill(int(run.path("srun.pid").read_text()), how)
        wait_for(lambda: not [pid for pid in run.tasks() if b"sleep\x0010" in command_of(pid)], "the end of every task")
        run.path("go").touch()
        _, out, _ = run.ended()
    assert out.splitlines() == ["ended"]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_pod_that_is_killed_in_the_middle_ends_the_step_by_name(pods):
    script = "srun -n2 bash -c 'touch up$SLURM_PROCID; sleep 1000'; echo $?"
    with pods(2, script) as run:
        wait_for(lambda: run.path("up0").exists() and run.path("up1").exists(), "two tasks")
        run.pods[1].kill()
        out, err = run.pods[0].communicate(timeout=PATIENCE_SECONDS)
    assert out.decode().strip() != "0"
    assert b"pod 127.88.0.1 is gone in the middle of step" in err
    assert b"not told that the run ends: 127.88.0.1" in err


def test_pods_whose_first_one_is_lost_end_and_say_why(pods, capfd):
    with pods(2, "touch up; srun -n2 true; touch ran; sleep 1000") as run:
        wait_for(lambda: run.path("ran").exists(), "a step over both pods")
        run.pods[0].kill()
        assert run.pods[1].wait(PATIENCE_SECONDS) == 1
    assert "pod 1 has not reached the first pod, 127.88.0.0, for 30 s" in capfd.readouterr().err


def test_preemption_reaches_the_script_and_every_task(pods):
    script = """
trap 'echo script; wait; exit 3' TERM
srun -n4 bash -c 'trap "echo task; exit 0" TERM; touch up$SLURM_PROCID; while true; do sleep 0.01; done' &
wait
"""
    with pods(2, script) as run:
        wait_for(lambda: all(run.path(f"up{task}").exists() for task in range(4)), "four tasks")
        for pod in run.pods:
            pod.terminate()
        code, out, _ = run.ended()
    assert code == 3
    assert Counter(out.split()) == {"task": 4, "script": 1}


@pytest.mark.parametrize(("warning", "heard"), [("USR1", {"task USR1": 2}), ("B:USR1", {"script USR1": 1})])
def test_a_warning_reaches_those_that_it_is_for(pods, warning, heard):
    script = """
for name in TERM USR1; do trap "echo script $name; touch told" $name; done
srun -n2 bash -c 'for name in TERM USR1; do trap "echo task $name; exit 0" $name; done; touch up$SLURM_PROCID
  until [ -e told ]; do sleep 0.01; done' &
wait; wait
"""
    with pods(2, script, {"TESSERA_STEPS_WARNING": warning}) as run:
        wait_for(lambda: all(run.path(f"up{task}").exists() for task in range(2)), "two tasks")
        for pod in run.pods:
            pod.terminate()
        code, out, err = run.ended()
    assert (code, Counter(out.splitlines())) == (0, heard), err


def test_input_goes_to_all_tasks_or_to_one(pods):
    script = """
printf 'x\\ny\\n' | srun -n2 -l cat | sort
printf 'z\\n' | srun -n2 -l -i 1 cat
head -c 3000000 /dev/zero | srun -n4 sha256sum | sort | uniq -c
head -c 3000000 /dev/zero | srun -n2 head -c 1 | wc -c
srun -n1 cat < /dev/null; srun -n2 --input=none wc -c
echo file > in; srun -n2 --input=in cat
"""
    with pods(2, script) as run:
        _, out, _ = run.ended()
    lines = out.splitlines()
    assert lines[:5] == ["0: x", "0: y", "1: x", "1: y", "1: z"]
    assert lines[5].split()[0] == "4"
    assert lines[6:] == ["2", "0", "0", "file", "file"]


def test_a_line_without_an_end_comes_all_the_same(pods):
    with pods(1, "srun -n1 bash -c 'printf abc; until [ -e go ]; do sleep 0.01; done; echo d'") as run:
        assert os.read(run.pods[0].stdout.fileno(), 10) == b"abc"
        run.path("go").touch()
        _, out, _ = run.ended()
    assert out == "d\n"


def test_lines_of_many_tasks_are_never_mixed(pods):
    line = "printf %0500d $SLURM_PROCID; printf .; printf %0500d\\\\n $SLURM_PROCID"
    script = f"srun -n8 bash -c 'for n in {{1..300}}; do {line}; done'"
    with pods(2, script) as run:
        _, out, _ = run.ended()
    assert Counter(out.splitlines()) == {f"{task:0500d}.{task:0500d}": 300 for task in range(8)}


def test_a_slow_reader_stops_the_task_and_nothing_is_kept_in_memory(pods):
    size = 200_000_000
    with pods(2, f"srun -n1 -N1 -w 127.88.0.1 bash -c 'head -c {size} /dev/zero; touch written'") as run:
        out = run.pods[0].stdout
        assert os.read(out.fileno(), 1) == b"\0"
        last = Counter[int]()
        wait_for(lambda: settled(run, last), "a standstill")
        assert not run.path("written").exists()
        assert all(resident_kibibytes(pid) < 32_768 for pid in run.processes())
        left = size - 1
        while left and (piece := os.read(out.fileno(), 1 << 20)):
            assert not piece.strip(b"\0")
            left -= len(piece)
        assert left == 0
        run.ended()


def settled(run, last: Counter[int]) -> bool:
    """Whether the runners and srun used no processor since the last look, a moment ago."""
    time.sleep(0.3)
    now = Counter({pid: cpu_ticks(pid) for pid in run.processes()})
    same = bool(now) and now == last
    last.clear()
    last.update(now)
    return same


def cpu_ticks(pid: int) -> int:
    try:
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    except OSError:
        return 0


def test_output_goes_into_files_of_the_step_or_of_each_task(pods):
    script = """
srun -n2 -o all-%j-%s.txt bash -c 'echo $SLURM_PROCID; echo e >&2'
srun -n2 -o %t-%n.out -e errors bash -c 'echo out $SLURM_PROCID; echo err >&2'
srun -n2 --open-mode=append -o 0-0.out echo more
srun -n2 -o 1 bash -c 'echo only $SLURM_PROCID'
"""
    with pods(2, script) as run:
        _, out, _ = run.ended()
    assert sorted(run.path(f"all-{run.job}-0.txt").read_text().split()) == ["0", "1", "e", "e"]
    assert run.path("1-1.out").read_text() == "out 1\n"
    assert run.path("errors").read_text() == "err\nerr\n"
    assert run.path("0-0.out").read_text() == "out 0\nmore\nmore\n"
    assert out == "only 1\n"


def test_gpus_of_a_task_are_its_own(pods):
    script = """
srun -N1 -n2 --gpus-per-task=2 bash -c 'echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES'
srun -N1 -n2 bash -c 'echo $CUDA_VISIBLE_DEVICES'
srun -n1 --gpus=1 bash -c 'echo $CUDA_VISIBLE_DEVICES'
srun -n1 --gpus=5 true; echo $?
"""
    with pods(1, script, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}) as run:
        _, out, _ = run.ended()
    lines = out.splitlines()
    assert sorted(lines[:2]) == ["0 4,5", "1 6,7"]
    assert lines[2:] == ["4,5,6,7", "4,5,6,7", "4", "1"]


def test_sixty_four_pods_are_started_by_one_srun(pods):
    with pods(64, "srun bash -c 'echo $SLURM_PROCID $WHERE'") as run:
        code, out, _ = run.ended()
    assert code == 0
    assert sorted(out.splitlines()) == sorted(f"{rank} {rank}" for rank in range(64))


def test_srun_is_a_program_that_others_call_and_tasks_too(pods):
    script = """
timeout 240 srun -n2 echo a
echo b | xargs srun -n1 echo
python3 -c 'import subprocess; subprocess.run(["srun", "-n1", "echo", "c"])'
srun -N1 -n1 -w 127.88.0.1 bash -c 'srun --overlap -N2 -n2 bash -c "echo d \\$WHERE \\$TESSERA_RANK"' | sort
"""
    with pods(2, script) as run:
        _, out, _ = run.ended()
    assert out.splitlines() == ["a", "a", "b", "c", "d 0 0", "d 1 1"]


def test_a_run_that_ends_before_its_other_pods_came_tells_them(pods):
    with pods(2, "true") as run:
        assert run.ended()[0] == 0
