"""Words of a script to its own job, in pods as processes: how its run ends by them, and its pod's last word."""

import json
import os
import time
from pathlib import Path

import pytest

MARK = "tessera-steps/1 "
ASKED = 75
"""Exit code of a run that its script wants to begin anew, or to be cancelled."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The termination message of the first pod, which the kubelet makes."""
    path = tmp_path / "termination-log"
    path.touch()
    return path


def word_in(log: Path) -> dict:
    (line,) = [line for line in log.read_text().splitlines() if line.startswith(MARK)]
    return json.loads(line.removeprefix(MARK))


def variables(log: Path) -> dict[str, str]:
    return {"TESSERA_STEPS_LAST_WORD": str(log), "SLURM_JOB_ID": "17", "USER": "ada", "SLURM_JOB_NAME": "train"}


def test_a_script_is_begun_anew_from_its_trap_and_its_steps_end_with_it(pods, log):
    script = """
trap 'scontrol requeue $SLURM_JOB_ID; echo asked $?' USR1
trap 'echo saved; exit 0' TERM
srun bash -c 'touch begun.$WHERE; sleep 1000' &
until [ -e begun.0 ] && [ -e begun.1 ]; do sleep 0.01; done
kill -USR1 $$
while :; do wait; done
"""
    with pods(2, script, variables(log)) as run:
        code, out, _ = run.ended()
        assert code == ASKED
        assert out.split("\n")[:2] in (["asked 0", "saved"], ["saved", ""])
        word = word_in(log)
    assert (word["ask"], word["who"]) == ("requeue", "scontrol requeue by the script, in 127.88.0.0")
    assert word["steps"] == 1
    (step,) = word["head"]
    assert step[:2] == ["bash", 2]
    assert step[4] in (137, 143)


def test_a_task_in_another_pod_may_ask_too(pods, log):
    with pods(2, "srun -n1 -w 127.88.0.1 scontrol requeue; sleep 1000", variables(log)) as run:
        code, _, err = run.ended()
    assert code == ASKED, err
    assert word_in(log)["who"] == "scontrol requeue by task 0 of step 0, in 127.88.0.1"


def test_a_script_that_ends_well_after_its_wish_begins_anew_all_the_same(pods, log):
    with pods(1, "trap '' TERM; scontrol requeue 17 && exit 0; exit 1", variables(log)) as run:
        code, _, err = run.ended()
    assert (code, err) == (ASKED, "")
    assert word_in(log)["ask"] == "requeue"


def test_a_script_cancels_its_own_job_and_what_it_started_ends(pods, log):
    script = """
srun -n1 bash -c 'touch begun; exec sleep 1000' & bash -c 'touch beside; sleep 1001; true' &
until [ -e begun ] && [ -e beside ]; do sleep 0.01; done
scancel $SLURM_JOB_ID; sleep 1002
"""
    with pods(1, script, variables(log)) as run:
        code, _, _ = run.ended()
        assert code == ASKED
        assert not run.tasks()
    word = word_in(log)
    assert (word["ask"], word["who"]) == ("cancel", "scancel by the script, in 127.88.0.0")


def test_a_signal_goes_to_the_tasks_and_with_batch_to_the_script(pods, log):
    script = """
trap 'echo script' USR1
srun -n1 bash -c 'trap "echo task; exit 3" USR1; touch begun; while :; do sleep 0.02; done' & step=$!
until [ -e begun ]; do sleep 0.01; done
scancel --signal=USR1 17; wait $step; echo step $?
scancel -s USR1 -b 17
srun -n1 bash -c 'touch second; exec sleep 1000' & step=$!
until [ -e second ]; do sleep 0.01; done
scancel 17.1; wait $step; echo step $?
scancel 17.1 || echo ended
"""
    with pods(1, script, variables(log)) as run:
        code, out, err = run.ended()
    assert code == 0, err
    assert out.splitlines() == ["task", "step 3", "script", "step 143", "ended"]
    assert "step 1: no such step runs" in err
    word = word_in(log)
    assert [row[0] for row in word["head"]] == ["bash", ""]
    assert [row[4] for row in word["head"]] == [3, 143]
    assert "ask" not in word


def test_another_job_and_what_a_pod_does_not_know_are_refused_by_name(pods, log):
    script = """
scancel 18; scontrol requeue 18; squeue -j 18; scontrol show job 18
scontrol hold 17; scontrol requeuehold 17; scontrol update JobId=17 TimeLimit=1; scontrol show nodes
scancel -u ada; squeue -u ada -o %Q; squeue --start
sbatch next.sh; echo $?; sacct -j 17; sinfo; salloc
"""
    with pods(1, script, variables(log)) as run:
        _, out, err = run.ended()
    lines = err.splitlines()
    assert out == "1\n"
    assert len(lines) == 15, err
    assert all("error: " in line for line in lines)
    assert all("machine from which you submit" in line for line in lines)
    assert "tessera scontrol hold JOB" in lines[4]
    assert not log.read_text()


def test_the_own_job_is_shown_from_what_its_pod_knows(pods, log):
    now = int(time.time())
    ends = {"SLURM_JOB_START_TIME": str(now - 90), "SLURM_JOB_END_TIME": str(now + 3510)}
    script = """
squeue; squeue -h -j $SLURM_JOB_ID -o "%i %T %D %R %l"; squeue -hj17 -o %T; squeue --me -h -t PD
scontrol show job $SLURM_JOB_ID; scontrol -o show job=17
"""
    with pods(2, script, variables(log) | ends) as run:
        code, out, err = run.ended()
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].split() == ["JOBID", "PARTITION", "NAME", "USER", "ST", "TIME", "NODES", "NODELIST(REASON)"]
    assert lines[1].split()[:5] == ["17", "N/A", "train", "ada", "R"]
    assert lines[2:4] == ["17 RUNNING 2 127.88.0.[0-1] 1:00:00", "RUNNING"]
    assert lines[4] == "JobId=17 JobName=train"
    assert "   NumNodes=2 NumTasks=2 CPUs/Task=1" in lines
    assert lines[-1].startswith("JobId=17 JobName=train JobState=RUNNING Reason=None")


def test_the_word_stands_behind_what_the_program_itself_wrote(pods, log):
    script = f"echo 'layer 7: out of memory' > {log}; srun true; exit 9"
    with pods(1, script, variables(log)) as run:
        code, _, _ = run.ended()
    assert code == 9
    first, _ = log.read_text().splitlines()
    assert first == "layer 7: out of memory"
    assert word_in(log)["steps"] == 1


def test_a_run_without_steps_and_wishes_leaves_no_word(pods, log):
    with pods(1, "exit 3", variables(log)) as run:
        assert run.ended()[0] == 3
    assert not log.read_bytes()


def test_a_step_whose_srun_is_killed_counts_as_killed(pods, log):
    script = """
srun -n1 bash -c 'touch begun; exec sleep 1000' & until [ -e begun ]; do sleep 0.01; done
kill -9 $!; wait
"""
    with pods(1, script, variables(log)) as run:
        run.ended()
        assert not run.tasks()
    assert word_in(log)["head"][0][4] == 137


def test_what_a_script_leaves_behind_ends_with_it_in_every_pod_and_nothing_is_said_of_it(pods, log):
    script = """
srun -n2 bash -c 'setsid sleep 1001 & touch begun.$WHERE; while :; do sleep 0.01; done' & setsid sleep 1000 &
until [ -e begun.0 ] && [ -e begun.1 ]; do sleep 0.01; done
exit 3
"""
    with pods(2, script, variables(log)) as run:
        assert run.ended() == (3, "", "")
        assert not run.tasks()
    (step,) = word_in(log)["head"]
    assert (step[1], step[4]) == (2, 137)


def test_a_file_of_another_user_is_no_reason_to_fail(pods, log, tmp_path):
    missing = variables(log) | {"TESSERA_STEPS_LAST_WORD": str(tmp_path / "none" / "log")}
    with pods(1, "srun -n1 true; scontrol requeue; echo $?", missing) as run:
        code, out, err = run.ended()
    assert (code, out) == (0, "1\n")
    assert "no file for its last word" in err
    assert not os.path.exists(tmp_path / "none")
