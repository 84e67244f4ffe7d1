"""The lease of an allocation: its first pod ends when it has heard nothing of its client, which renews it meanwhile."""

import asyncio
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tessera.client.slurm import lease
from tessera.client.slurm.lease import RENEW, renewed, waiting_script
from tessera.client.slurm.scripts.pods import command_of

POD = "a" * 20 + "-1-0"


def waits(rank: int = 0, tasks: int = 1, seconds: float = 0.5, start: float = 3) -> "subprocess.Popen[str]":
    """The program of a pod, whose lease lasts half a second."""
    text = waiting_script(lease=seconds, start=start, look=0.1, pause="0.1")
    env = {"PATH": "/usr/bin:/bin", "SLURM_PROCID": str(rank), "SLURM_NTASKS": str(tasks)}
    return subprocess.Popen(["/bin/sh", "-c", text], env=env, stderr=subprocess.PIPE, text=True)


def test_a_pod_that_hears_nothing_of_its_client_fails_within_its_lease_and_says_so() -> None:
    pod = waits()
    _, said = pod.communicate(timeout=10)
    assert (pod.returncode, said) == (
        1,
        "the client of this allocation was not heard for 0.5 seconds: the allocation ends\n",
    )


def test_a_renewed_lease_goes_on_and_sigterm_ends_it_at_once() -> None:
    pod = waits()
    for _ in range(10):
        time.sleep(0.15)
        pod.send_signal(signal.SIGUSR1)
    assert pod.poll() is None
    pod.send_signal(signal.SIGTERM)
    assert pod.wait(timeout=5) == 0


def test_the_first_pod_of_a_gang_has_until_the_last_one_runs_and_the_others_hold_no_lease() -> None:
    first, second = waits(tasks=2), waits(rank=1, tasks=2)
    time.sleep(1)
    assert (first.poll(), second.poll()) == (None, None)
    first.send_signal(signal.SIGUSR1)  # from here on it is as short as any
    assert first.wait(timeout=2) == 1
    assert second.poll() is None
    second.send_signal(signal.SIGTERM)
    assert second.wait(timeout=5) == 0


def test_the_program_is_what_the_pods_of_an_allocation_run() -> None:
    command = command_of(waiting_script(), "salloc")
    assert (command.words[:2], command.mistakes) == (["/bin/sh", "-c"], ())
    assert command.words[2].replace("$$", "$") == waiting_script()
    assert '"$tessera_looks" -lt 30 ]' in waiting_script()
    assert "tessera_looks=-330\n" in waiting_script()


def kubectl(folder: Path, code: int = 0) -> tuple[str, Path]:
    """A kubectl that notes what it is asked for."""
    path, asked = folder / "kubectl", folder / "asked"
    path.write_text(f'#!/bin/sh\necho "$@" >>{asked}\nexit {code}\n')
    path.chmod(0o755)
    asked.touch()
    return str(path), asked


async def test_the_client_renews_at_once_and_again_until_the_step_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.2)
    path, asked = kubectl(tmp_path)
    async with renewed(path, "lab", POD):
        async with asyncio.timeout(10):
            while len(asked.read_text().splitlines()) < 3:
                await asyncio.sleep(0.01)
    said = asked.read_text().splitlines()
    assert set(said) == {" ".join(("exec", "-n", "lab", POD, "--", *RENEW))}
    await asyncio.sleep(0.5)
    assert asked.read_text().splitlines() == said
    assert capsys.readouterr().err == ""


async def test_a_pod_that_is_not_reached_is_told_once_before_its_lease_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.2)
    path, asked = kubectl(tmp_path, code=1)
    async with renewed(path, "lab", POD):
        async with asyncio.timeout(10):
            while len(asked.read_text().splitlines()) < 8:
                await asyncio.sleep(0.01)
    assert capsys.readouterr().err.count("is not reached") == 1
