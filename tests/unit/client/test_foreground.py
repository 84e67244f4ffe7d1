"""Signals to `srun` and `salloc`: their job ends with them, and of one that runs Ctrl-C is to be said twice."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer

from tessera.client.commands.slurm_words import foreground as module
from tessera.client.commands.slurm_words.foreground import SIGNALS, Foreground, foreground
from tessera.client.connect.where import Where
from tessera.client.outcomes import Exit, Failure
from tessera.client.sending import ordering
from tessera_schemas.commands import CancelJob

JOB = "j" * 20
by_signal = pytest.mark.parametrize("number", SIGNALS, ids=[each.name for each in SIGNALS])


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Signals mean what they do in a terminal, also where the tests run in the background, as under nohup."""
    defaults = dict.fromkeys(SIGNALS, signal.SIG_DFL) | {signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in defaults.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> list[CancelJob]:
    """The orders to cancel that were sent."""
    sent: list[CancelJob] = []

    async def send(_where: Any, _identity: Any, order: CancelJob, _job: str) -> bool:
        await asyncio.sleep(0)
        sent.append(order)
        return True

    monkeypatch.setattr(ordering, "send", send)
    return sent


def tell(number: signal.Signals, times: int = 1, every_seconds: float = 0) -> None:
    """Signal this process now and so many times in all."""
    os.kill(os.getpid(), number)
    if times > 1:
        asyncio.get_running_loop().call_later(every_seconds, tell, number, times - 1, every_seconds)


@asynccontextmanager
async def in_foreground(name: str = "srun") -> AsyncIterator[Foreground]:
    async with foreground(name, cast(Where, SimpleNamespace()), None) as own:
        yield own


async def exit_code(body: Callable[[Foreground], Any], name: str = "srun") -> int:
    """The code with which a command ends whose body waits for ever."""
    before = [signal.getsignal(number) for number in SIGNALS]

    async def run() -> None:
        async with asyncio.timeout(60), in_foreground(name) as own:
            body(own)
            await asyncio.Event().wait()

    with pytest.raises(typer.Exit) as raised:
        await run()
    assert [signal.getsignal(number) for number in SIGNALS] == before
    return raised.value.exit_code


@by_signal
async def test_a_signal_cancels_the_job_that_waits(
    number: signal.Signals, cancelled: list[CancelJob], capsys: pytest.CaptureFixture[str]
) -> None:
    def begin(own: Foreground) -> None:
        own.is_stored(JOB)
        tell(number, times=3)  # an impatient one; the order to cancel is not cut short

    assert await exit_code(begin) == 128 + number
    assert [(order.job_id, order.now, order.why) for order in cancelled] == [
        (JOB, True, f"its srun was ended by {number.name}")
    ]
    assert capsys.readouterr().err == f"srun: {number.name}: cancelling job {JOB}\n"


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
async def test_a_running_job_ends_with_its_terminal(number: signal.Signals, cancelled: list[CancelJob]) -> None:
    def begin(own: Foreground) -> None:
        own.is_stored(JOB)
        own.is_running = True
        tell(number)

    assert await exit_code(begin) == 128 + number
    assert [order.job_id for order in cancelled] == [JOB]


async def test_a_running_job_is_cancelled_by_the_second_ctrl_c_within_a_second(
    cancelled: list[CancelJob], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ABORT_SECONDS", 0.2)
    async with in_foreground() as own:
        own.is_stored(JOB)
        own.is_running = True
        tell(signal.SIGINT, times=2, every_seconds=0.4)
        told, asked = "", f"srun: Ctrl-C again within one second cancels job {JOB}\n"
        async with asyncio.timeout(60):
            while told != 2 * asked:
                await asyncio.sleep(0.01)
                told += capsys.readouterr().err
    assert cancelled == []
    monkeypatch.setattr(module, "ABORT_SECONDS", 60)

    def begin(own: Foreground) -> None:
        own.is_stored(JOB)
        own.is_running = True
        tell(signal.SIGINT, times=2, every_seconds=0.02)

    assert await exit_code(begin) == 130
    assert [order.job_id for order in cancelled] == [JOB]


async def test_a_signal_during_the_submit_counts_once_the_job_has_an_id(
    cancelled: list[CancelJob], capsys: pytest.CaptureFixture[str]
) -> None:
    def begin(own: Foreground) -> None:
        tell(signal.SIGHUP)
        asyncio.get_running_loop().call_later(0.05, own.is_stored, JOB)

    assert await exit_code(begin, "salloc") == 129
    assert [order.job_id for order in cancelled] == [JOB]
    assert "is cancelled once its submit is answered" in capsys.readouterr().err


async def test_a_second_signal_during_the_submit_ends_it_and_says_what_is_not_known(
    cancelled: list[CancelJob], capsys: pytest.CaptureFixture[str]
) -> None:
    assert await exit_code(lambda _: tell(signal.SIGINT, times=2, every_seconds=0.02)) == 130
    assert cancelled == []
    assert "the job may be stored, and is not cancelled" in capsys.readouterr().err


async def test_a_job_that_cannot_be_cancelled_is_said_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def away(*_: Any) -> bool:
        raise Failure(Exit.UNAVAILABLE, "nobody answers")

    monkeypatch.setattr(ordering, "send", away)

    def begin(own: Foreground) -> None:
        own.is_stored(JOB)
        tell(signal.SIGTERM)

    assert await exit_code(begin) == 143
    assert f"is not cancelled: nobody answers; `tessera cancel {JOB}` ends it" in capsys.readouterr().err


async def test_an_end_that_cancels_anyway_cancels_once_also_when_its_terminal_closes(
    cancelled: list[CancelJob],
) -> None:
    async def run() -> None:
        async with in_foreground("salloc") as own:
            own.is_stored(JOB)
            try:
                tell(signal.SIGHUP)
                await asyncio.Event().wait()
            finally:
                await own.cancel("its salloc has ended")

    with pytest.raises(typer.Exit):
        await run()
    assert [order.why for order in cancelled] == ["its salloc has ended"]


async def test_a_signal_that_nohup_keeps_away_stays_away(cancelled: list[CancelJob]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        async with in_foreground() as own:
            own.is_stored(JOB)
            tell(signal.SIGHUP)
            await asyncio.sleep(0.05)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert cancelled == []
