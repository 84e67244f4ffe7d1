"""
A job that ends with the command that waits for it, as `srun` and `salloc` do: signals to the command cancel its job.

Enters: SIGINT, SIGHUP and SIGTERM, unless they were ignored from the start, as `nohup` has it. Leaves: the order to
cancel, and the exit code that shells give for the signal. Only SIGKILL and the loss of the machine leave the job alone.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import typer

from tessera.client.connect.where import Where
from tessera.client.outcomes import EXPECTED
from tessera.client.sending import ordering
from tessera.client.views.rendering import notify
from tessera.kernel.clock import SystemClock
from tessera_schemas.commands import CancelJob

SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
ABORT_SECONDS = 1.0
"""Within which the second Ctrl-C must come that cancels a job that runs."""
CANCEL_SECONDS = 15.0
"""How long an end waits for the order to cancel to be stored."""


class Foreground:
    """The job of a command in the foreground, and what a signal means for it now."""

    def __init__(self, name: str, where: Where, identity: str | None) -> None:
        self.name, self.job_id, self.is_running = name, "", False
        self.signal: signal.Signals | None = None
        self._where, self._identity = where, identity
        self._task, self._clock = asyncio.current_task(), SystemClock()
        self._interrupted_at, self.is_cancelled = float("-inf"), False
        self._tell: Callable[[signal.Signals], None] | None = None

    @contextmanager
    def interrupts(self, tell: Callable[[signal.Signals], None]) -> Iterator[None]:
        """SIGINT goes to the step that runs meanwhile, and the job goes on."""
        self._tell = tell
        try:
            yield
        finally:
            self._tell = None

    def is_stored(self, job_id: str) -> None:
        """The job has an id from now on; a signal that came before counts now."""
        self.job_id = job_id
        if self.signal is not None:
            self._stop()

    def on_signal(self, number: signal.Signals) -> None:
        """End the command; a job that runs asks for a second SIGINT first."""
        if self.signal is not None:
            if not self.job_id:
                self._stop()  # the second one while the submit is on its way
            return  # the order to cancel is on its way
        now = self._clock.monotonic()
        if number is signal.SIGINT and self._tell is not None:
            self._tell(number)
            return
        if number is signal.SIGINT and self.is_running and now - self._interrupted_at > ABORT_SECONDS:
            self._interrupted_at = now
            notify(f"{self.name}: Ctrl-C again within one second cancels job {self.job_id}")
            return
        self.signal = number
        if self.job_id:
            self._stop()
        else:  # it may be stored already, under an id that only the answer tells
            notify(f"{self.name}: the job is cancelled once its submit is answered; a second signal leaves it as it is")

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def cancel(self, why: str) -> None:
        """Order the job's end once, without its checkpoint notice; where that fails, say how it is done by hand."""
        if self.is_cancelled:
            return
        order = CancelJob(kind="cancel_job", v=1, job_id=self.job_id, why=why, now=True)
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await ordering.send(self._where, self._identity, order, self.job_id)
        except (*EXPECTED, TimeoutError) as error:
            said = str(error) or f"no answer within {CANCEL_SECONDS:g} s"
            notify(f"{self.name}: job {self.job_id} is not cancelled: {said}; `tessera cancel {self.job_id}` ends it")
        self.is_cancelled = True


@asynccontextmanager
async def foreground(name: str, where: Where, identity: str | None) -> AsyncIterator[Foreground]:
    """
    The command from its submit to its end. Raises typer.Exit once a signal has ended it and its job.

    The body says by `is_stored` which job it is, and by `is_running` that Ctrl-C is to be asked for twice.
    """
    own = Foreground(name, where, identity)
    with _receiving(own):
        try:
            yield own
        except asyncio.CancelledError:
            if own.signal is None:
                raise
            if not own.job_id:
                notify(f"{name}: the job may be stored, and is not cancelled; `tessera ls` shows it")
            elif not own.is_cancelled:
                notify(f"{name}: {own.signal.name}: cancelling job {own.job_id}")
                await own.cancel(f"its {name} was ended by {own.signal.name}")
            raise typer.Exit(128 + own.signal) from None


@contextmanager
def _receiving(own: Foreground) -> Iterator[None]:
    """Signals go to the command's job, but for those that this process was started to ignore."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    heard = {number: handler for number, handler in before.items() if handler not in (None, signal.SIG_IGN)}
    for number in heard:
        loop.add_signal_handler(number, own.on_signal, number)
    try:
        yield
    finally:
        for number, handler in heard.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
