"""The lease of an allocation: its first pod ends when it has heard nothing of its client, which renews it meanwhile."""

import asyncio
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tessera.client.slurm import lease
from tessera.client.slurm.lease import RENEW, RENEW_BY_NAME, renewed, waiting_by_name, waiting_script
from tessera.client.slurm.scripts.pods import command_of
from tessera.client.slurm.steps import RUNNER
from tests.exec_calls import Call, exec_calls

POD = "a" * 20 + "-1-0"


def waits(rank: int = 0, tasks: int = 1, seconds: float = 0.5, start: float = 3) -> "subprocess.Popen[str]":
    """The program of a pod, whose lease lasts half a second, once it heeds signals."""
    text = waiting_script(lease=seconds, start=start, look=0.1, pause="0.1")
    env = {"PATH": "/usr/bin:/bin", "SLURM_PROCID": str(rank), "SLURM_NNODES": str(tasks)}
    pod = subprocess.Popen(["/bin/sh", "-c", text], env=env, stderr=subprocess.PIPE, text=True)
    heeded = 1 << signal.SIGUSR1 - 1 | 1 << signal.SIGTERM - 1
    while pod.poll() is None and caught_by(pod.pid) & heeded != heeded:
        time.sleep(0.01)
    return pod


def caught_by(pid: int) -> int:
    """Signals that a process has handlers for, as the kernel's mask."""
    (mask,) = re.findall(r"^SigCgt:\s+(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(mask, 16)


def test_a_pod_that_hears_nothing_of_its_client_fails_within_its_lease_and_says_so() -> None:
    pod = waits()
    _, said = pod.communicate(timeout=60)
    assert (pod.returncode, said) == (
        1,
        "the client of this allocation was not heard for 0.5 seconds: the allocation ends\n",
    )


def test_a_renewed_lease_goes_on_and_sigterm_ends_it_at_once() -> None:
    pod = waits(seconds=3)
    for _ in range(8):
        time.sleep(0.5)
        pod.send_signal(signal.SIGUSR1)
    assert pod.poll() is None
    pod.send_signal(signal.SIGTERM)
    assert pod.wait(timeout=60) == 0


def test_the_first_pod_of_a_gang_has_until_the_last_one_runs_and_the_others_hold_no_lease() -> None:
    first, second = waits(tasks=2, start=60), waits(rank=1, tasks=2)
    time.sleep(1)
    assert (first.poll(), second.poll()) == (None, None)
    first.send_signal(signal.SIGUSR1)  # from here on it is as short as any
    assert first.wait(timeout=60) == 1
    assert second.poll() is None
    second.send_signal(signal.SIGTERM)
    assert second.wait(timeout=60) == 0


def test_the_program_is_what_the_pods_of_an_allocation_run() -> None:
    command = command_of(waiting_script(), "salloc")
    assert (command.words[:2], command.mistakes) == (["/bin/sh", "-c"], ())
    assert command.words[2].replace("$$", "$") == waiting_script()
    assert '"$tessera_looks" -lt 30 ]' in waiting_script()
    assert "tessera_looks=-330\n" in waiting_script()


def test_where_the_runner_is_there_the_program_has_a_name_by_which_it_is_renewed() -> None:
    text = waiting_by_name()
    shown = text.replace(f"exec {RUNNER} as lease /bin/sh -c ", "printf %s ")
    assert (
        subprocess.run(["/bin/sh", "-c", shown], capture_output=True, text=True, check=True).stdout == waiting_script()
    )
    assert RENEW_BY_NAME == (RUNNER, "tell", "lease", "USR1")


async def test_the_client_renews_at_once_and_again_until_the_step_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.2)
    asked: list[Call] = []
    thrice = asyncio.Event()

    async def play(call: Call) -> None:
        asked.append(call)
        if len(asked) == 3:
            thrice.set()
        await call.end()

    async with exec_calls(tmp_path, play) as server, server.pods() as pods, renewed("salloc", pods, POD, RENEW):
        await asyncio.wait_for(thrice.wait(), 60)
    assert {(call.pod, *call.words) for call in asked} == {(POD, *RENEW)}
    assert capsys.readouterr().err == ""


async def test_a_pod_that_is_not_reached_is_told_once_before_its_lease_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.2)
    tried, often = 0, asyncio.Event()

    async def play(call: Call) -> None:
        nonlocal tried
        tried += 1
        if tried == 12:
            often.set()
        await call.end(1)

    async with exec_calls(tmp_path, play) as server, server.pods() as pods, renewed("salloc", pods, POD, RENEW):
        await asyncio.wait_for(often.wait(), 60)
    assert capsys.readouterr().err.count("is not reached") == 1
