"""Commands in pods by the Kubernetes API, as an API server of loopback sees them."""

import asyncio
import os
import signal
from pathlib import Path

import kubernetes.config
import kubernetes.config.kube_config
import pytest

from tessera.client.outcomes import Exit, Failure
from tessera.client.slurm.in_pods import NoProgram, pods_of
from tessera.client.slurm.steps import (
    RUNNER,
    SlurmStep,
    all_signals,
    check_owner,
    for_runner,
    has_runner,
    read_step,
    run_step,
    run_words,
    split_step,
)
from tessera_schemas.views import JobView
from tests.exec_calls import Call, exec_calls
from tests.unit.client.job_views import named

POD = f"{'a' * 20}-1-0"


def job(pods: int = 2) -> JobView:
    return named("a", "running").model_copy(update={"pods": pods})


def use(monkeypatch: pytest.MonkeyPatch, kubeconfig: Path) -> None:
    """Have this kubeconfig; the package reads the variable once, as it is imported."""
    for module in (kubernetes.config, kubernetes.config.kube_config):
        monkeypatch.setattr(module, "KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> int:
    """The other end of this process's input."""
    ours, theirs = os.pipe()
    monkeypatch.setattr("sys.stdin", os.fdopen(ours, "r"))
    return theirs


async def test_output_errors_and_exit_code_are_those_of_the_program_and_its_input_ends_as_ours_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], typed: int
) -> None:
    async def play(call: Call) -> None:
        heard = b""
        while piece := await call.read():
            heard += piece
        await call.write(heard)
        await call.write(b"odd \xff\n", stream=2)
        await call.end(9)

    async with exec_calls(tmp_path, play) as server:
        use(monkeypatch, server.kubeconfig)
        os.write(typed, b"typed\n")
        os.close(typed)
        async with pods_of("lab") as pods:
            assert await pods.run(POD, ["cat", "a b", "ä&c=d"], reads=True) == 9
    (call,) = server.calls
    assert (call.pod, call.words, call.flags) == (POD, ["cat", "a b", "ä&c=d"], {"stdin", "stdout", "stderr"})
    assert capfdbinary.readouterr() == (b"typed\n", b"odd \xff\n")


@pytest.mark.parametrize(
    ("status", "said", "code", "way_out"),
    [
        (401, "Unauthorized", Exit.REFUSED, "log in to the cluster anew"),
        (403, 'User "ann" cannot create "pods/exec"', Exit.REFUSED, "`get` and `create` of `pods/exec`"),
        (404, 'pods "x" not found', Exit.NOT_FOUND, "the pod is gone"),
        (500, "container not found", Exit.UNAVAILABLE, "tessera explain"),
    ],
)
async def test_who_is_not_let_in_is_told_in_the_servers_words_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, said: str, code: Exit, way_out: str
) -> None:
    async with exec_calls(tmp_path, Call.end) as server:
        server.refusal = status, said
        use(monkeypatch, server.kubeconfig)
        with pytest.raises(Failure, match=f"nothing runs in {POD} of lab") as failure:
            async with pods_of("lab") as pods:
                await pods.run(POD, ["true"])
    assert (failure.value.code, said in str(failure.value), way_out in str(failure.value)) == (code, True, True)


async def test_a_missing_kubeconfig_and_a_server_that_is_away_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, tmp_path / "none")
    with pytest.raises(Failure, match=r"your own kubeconfig: .*; set KUBECONFIG"):
        async with pods_of("lab"):
            pass
    async with exec_calls(tmp_path, Call.end) as server:
        use(monkeypatch, server.kubeconfig)
    with pytest.raises(Failure, match=r"is not reached: .*; mend KUBECONFIG"):
        async with pods_of("lab") as pods:
            await pods.run(POD, ["true"])


async def test_a_connection_that_breaks_and_a_program_that_is_not_there_are_no_exit_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(call: Call) -> None:
        if call.words[0] == RUNNER:
            await call.fail({"status": "Failure", "message": f'exec: "{RUNNER}": stat: no such file or directory'})

    async with exec_calls(tmp_path, play) as server:
        use(monkeypatch, server.kubeconfig)
        async with pods_of("lab") as pods:
            with pytest.raises(Failure, match="the connection broke"):
                await pods.run(POD, ["true"])
            with pytest.raises(NoProgram, match="no such file"):
                await pods.run(POD, [RUNNER])
            assert not await has_runner(pods, job())


async def test_a_signal_reaches_the_step_by_a_call_of_its_own_and_the_steps_end_is_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: int
) -> None:
    told = asyncio.Event()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in what runs behind it

    async def play(call: Call) -> None:
        if call.words[1] == "tell":
            told.set()
            await call.end()
            return
        os.kill(os.getpid(), signal.SIGINT)
        await told.wait()
        await call.end(6)

    async with exec_calls(tmp_path, play) as server:
        use(monkeypatch, server.kubeconfig)
        async with pods_of("lab") as pods:
            words = ["srun", "--jobid=7", "--as=lab", "-n", "2", "-l", "sleep", "9"]
            assert await run_words(pods, job(), words, all_signals) == 6
    step, tell = server.calls
    name = step.words[2]
    assert step.words == [RUNNER, "as", name, "srun", "-n2", "-l", "sleep", "9"]
    assert tell.words == [RUNNER, "tell", name, "SIGINT"]
    assert {step.pod, tell.pod} == {POD}
    signal.signal(signal.SIGINT, before)
    os.close(typed)


async def test_a_terminal_is_raw_meanwhile_and_tells_its_size_and_each_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    before = termios.tcgetattr(theirs)
    keys = bytearray()

    async def play(call: Call) -> None:
        await call.read()  # its size, which comes once the terminal is raw
        os.write(ours, b"\x03q")
        while len(keys) < 2:
            keys.extend(await call.read())
        await call.end(7)

    with os.fdopen(theirs, "r") as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        async with exec_calls(tmp_path, play) as server:
            use(monkeypatch, server.kubeconfig)
            async with pods_of("lab") as pods:
                words = ["srun", "--pty", "-n4", "bash", "-l"]
                assert await run_words(pods, job(), words, all_signals) == 7
        assert termios.tcgetattr(theirs) == before
        os.write(ours, b"\n")  # who reads is let go
    (call,) = server.calls
    assert (call.words, call.flags) == ([RUNNER, "enter", "bash", "-l"], {"stdin", "stdout", "tty"})
    assert (call.sizes, bytes(keys)) == ([{"Width": 100, "Height": 30}], b"\x03q")
    assert "-n4 is passed over" in capsys.readouterr().err
    os.close(ours)


async def test_without_the_runner_a_step_is_a_call_to_each_pod_with_its_rank_before_each_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def play(call: Call) -> None:
        await call.write(b"one\ntw")
        await call.write(b"o\nend")
        await call.end(int(call.pod[-1]))

    async with exec_calls(tmp_path, play) as server:
        use(monkeypatch, server.kubeconfig)
        async with pods_of("lab") as pods:
            assert await run_step(pods, job(), ["hostname"], SlurmStep(label=True)) == 1
            with pytest.raises(Failure, match="the allocation has 2"):
                await run_step(pods, job(), ["hostname"], SlurmStep(3))
    said = capfd.readouterr().out
    assert all(f"{rank}: {line}" in said for rank in (0, 1) for line in ("one\n", "two\n", "end"))
    assert [call.flags for call in server.calls] == [{"stdout", "stderr"}] * 2


def test_pods_of_users_are_theirs() -> None:
    with pytest.raises(Failure, match="Job/train"):
        check_owner(job().model_copy(update={"owner": "Job/train"}))


@pytest.mark.parametrize(
    ("words", "options", "command"),
    [
        ("--jobid 5 -n 2 hostname -f", ["--jobid=5", "-n2"], ["hostname", "-f"]),
        ("-l -n2 --cpu-bind none -- x", ["-l", "-n2", "--cpu-bind=none"], ["x"]),
        ("--nodel=a,b -K --propagate x -n 3", ["--nodel=a,b", "-K", "--propagate"], ["x", "-n", "3"]),
        ("--ntasks 2 --lab x", ["--ntasks=2", "--lab"], ["x"]),
        ("--as lab --jobid=5 x", ["--as=lab", "--jobid=5"], ["x"]),
    ],
)
def test_the_options_of_a_step_end_where_its_command_begins(words: str, options: list[str], command: list[str]) -> None:
    assert split_step(words.split()) == (options, command)
    kept = [each for each in options if not each.startswith(("--jobid", "--as"))]
    assert for_runner(options) == kept


@pytest.mark.parametrize(
    ("words", "step"),
    [
        ("--jobid=x hostname", SlurmStep()),
        ("--jobid=x -n 2 -l hostname", SlurmStep(2, label=True)),
        ("--jobid=x -N1 --overlap hostname", SlurmStep(1)),
        ("--jobid=x --pty bash", SlurmStep(1, terminal=True)),
    ],
)
def test_a_step_says_in_which_pods_it_runs(words: str, step: SlurmStep) -> None:
    assert read_step(words.split()) == (step, words.split()[-1:])


@pytest.mark.parametrize(("words", "mistakes"), [("--gpus=8 x", 1), ("-n many x", 1), ("-n 0 --mem=1G x : y", 3)])
def test_a_step_refuses_what_the_allocation_says_all_at_once(words: str, mistakes: int) -> None:
    with pytest.raises(Failure) as failure:
        read_step(words.split())
    assert str(failure.value).count("srun: ") == mistakes
