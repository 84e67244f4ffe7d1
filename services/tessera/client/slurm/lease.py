"""
The lease of an allocation: its first pod ends by itself once it has heard nothing of its command for LEASE_SECONDS.

The client renews it by a signal to the program that holds it, by the same call that opens the shell. So a machine that
is lost, asleep or without network ends its allocation within that time, and no service has to know of it.
"""

import asyncio
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tessera.client.outcomes import Failure
from tessera.client.slurm.in_pods import PodExec
from tessera.client.slurm.steps import RUNNER
from tessera.client.views.rendering import notify
from tessera.kernel.clock import SystemClock

LEASE_SECONDS = 300
RENEW_SECONDS = 60.0
"""From one renewal to the next: four may fail in a row."""
START_SECONDS = 3600
"""Longest time from the start of a gang's first pod until the last one runs, before which nobody can renew."""
LOOK_SECONDS = 10
RENEW = ("/bin/sh", "-c", "kill -USR1 1")
RENEW_BY_NAME = (RUNNER, "tell", "lease", "USR1")
"""Where the step runner is the pod's first process, which hands a signal to all steps."""


def waiting_script(
    lease: float = LEASE_SECONDS, start: float = START_SECONDS, look: float = LOOK_SECONDS, pause: str = "10"
) -> str:
    """
    The program of an allocation's pods; rank 0 fails once it has looked for a renewal in vain, the others wait.

    It waits for its sleep, so that SIGTERM ends it at once. All times are seconds, `pause` as `sleep` takes it.
    """
    return f"""\
#!/bin/sh
trap 'exit 0' TERM
trap 'tessera_looks=0' USR1
tessera_looks=0
[ "${{SLURM_NNODES:-1}}" = 1 ] || tessera_looks=-{int((start - lease) / look)}
while [ "${{SLURM_PROCID:-0}}" != 0 ] || [ "$tessera_looks" -lt {int(lease / look)} ]; do
  tessera_looks=$((tessera_looks + 1))
  sleep {pause} & wait $!
done
echo "the client of this allocation was not heard for {lease:g} seconds: the allocation ends" >&2
exit 1
"""


def waiting_by_name() -> str:
    """The same program where the step runner is there: in the first pod alone, and found by its name."""
    return f"#!/bin/sh\nexec {RUNNER} as lease /bin/sh -c {shlex.quote(waiting_script())}\n"


@asynccontextmanager
async def renewed(name: str, pods: PodExec, pod: str, renew: Sequence[str]) -> AsyncIterator[None]:
    """Renew the lease of this pod meanwhile; say once, as the command of this name, when it is near its end."""
    renewing = asyncio.create_task(_renew(name, pods, pod, renew))
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)


async def _renew(name: str, pods: PodExec, pod: str, renew: Sequence[str]) -> None:
    clock = SystemClock()
    heard, told = clock.monotonic(), False
    while True:
        why = ""
        try:
            async with asyncio.timeout(RENEW_SECONDS):
                code = await pods.run(pod, renew, lambda *_: None)
        except (Failure, TimeoutError) as error:
            code, why = 1, f" ({error})" if str(error) else ""
        if code == 0:
            heard, told = clock.monotonic(), False
        elif clock.monotonic() - heard > LEASE_SECONDS / 2 and not told:
            told = True
            notify(f"{name}: {pod} is not reached{why}; it ends {LEASE_SECONDS} s after it heard of this client last")
        await clock.sleep(RENEW_SECONDS)
