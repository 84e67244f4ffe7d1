"""`--signal`: what a pod's steps, or its script, get when the pod is told to end."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tessera.client.slurm.values import Said, warning_of
from tests.unit.client.slurm_builders import job, pod_of, wrong

WAITS = "echo up; while :; do sleep 0.05; done"


def ended(tmp_path: Path, option: str, body: str) -> tuple[int, str]:
    """Exit code and output of a pod that gets SIGTERM, as from the kubelet, once its program is up."""
    words, env = pod_of(job(option, body=body))
    pod = subprocess.Popen(words, env=env | {"TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True)
    assert pod.stdout is not None
    first = pod.stdout.readline()
    pod.send_signal(signal.SIGTERM)
    try:
        return pod.wait(60), first + pod.stdout.read()
    finally:
        pod.kill()


def test_a_step_gets_the_signal_and_the_script_goes_on_to_its_end(tmp_path: Path) -> None:
    step = f"trap 'echo saved; exit 3' USR2; {WAITS}"
    assert ended(tmp_path, "--signal=USR2@90", f'srun sh -c "{step}"; echo $?; exit 5') == (5, "up\nsaved\n3\n")


def test_with_b_the_scripts_shell_gets_it(tmp_path: Path) -> None:
    assert ended(tmp_path, "--signal=B:USR1@60", f"trap 'echo shell; exit 4' USR1; {WAITS}") == (4, "up\nshell\n")


def test_the_code_of_a_script_that_ends_by_itself_is_its_own() -> None:
    words, env = pod_of(job("--signal=USR1", body="srun echo $#; srun false; exit 7"))
    unwritable = env | {"TMPDIR": os.devnull}
    done = subprocess.run(words, env=unwritable, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, "0\n")


def test_the_seconds_are_the_grace_of_the_pods() -> None:
    assert job("--signal=B:USR1@120").termination_grace_seconds == 120
    assert job("--signal=12").termination_grace_seconds == 60
    spec = job("--signal=TERM@30")
    assert (spec.termination_grace_seconds, spec.roles[0].template.command[0]) == (30, "/bin/bash")


@pytest.mark.parametrize("text", ["KILL@60", "USR1@9999", "@60", "X:USR1"])
def test_a_signal_that_cannot_be_meant_is_refused(text: str) -> None:
    assert "such as TERM@120" in wrong(f"--signal={text}")


def test_a_signal_is_told_by_name_or_number() -> None:
    read = warning_of(Said("x", "signal", "R:SIGUSR1@5"))
    assert (read.signal, read.seconds, read.to_script) == ("USR1", 5, False)
    assert warning_of(Said("x", "signal", "B:10")).signal == "USR1"
