"""`tessera demo` from its first line to its last: a shard is started, the play is given, everything is stopped."""

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tessera.client.outcomes import Exit, Failure
from tessera_local.cluster.machines.nodes import NodeRow
from tessera_local.demo import story
from tessera_local.demo.plan import SCHEDULER, DemoPlan
from tessera_local.demo.scenario import open_scenario
from tessera_local.demo.summary import DemoOutcome, summary
from tessera_local.platform import Platform
from tessera_local.production_mix import find_mix
from tessera_schemas.shard.services import SERVICES

INTERRUPTED = 130


async def demo(
    jobs: int = 200, nodes: int = 40, seed: int = 1, keep: Path | None = None, kill: str | None = SCHEDULER
) -> int:
    """
    Show a whole shard at work and return the exit code: 1 when anything is wrong or lost, 130 after Ctrl-C.

    `keep` is where everything is left afterwards; else it is removed. `kill` names the service that is killed.
    """
    plan = DemoPlan.draw(find_mix(os.environ, Path.cwd()), jobs, nodes, seed, kill)
    with _home(keep) as home:
        _write_nodes(home, [*plan.nodes, story.NODE])
        showing = asyncio.ensure_future(_show(plan, home))
        interrupted = _cancel_at_signal(showing)
        with suppress(asyncio.CancelledError):
            outcome = await showing
            print("\n".join(_last_words(outcome, keep)))
            return 0 if outcome.ok else 1
        if not interrupted.is_set():
            raise asyncio.CancelledError
        print("interrupted; everything is stopped")
        return INTERRUPTED


async def _show(plan: DemoPlan, home: Path) -> DemoOutcome:
    jobs, size = f"{len(plan.jobs)} jobs ({len(plan.gangs)} gangs)", f"{len(plan.nodes)} nodes with {plan.gpus} GPUs"
    print(f"Tessera demo: {jobs} on {size}.")
    print(f"Mix of a production GPU cloud (Alibaba 2023), {plan.source}.")
    print("Programs are simulated, run times cut to seconds; all services are real.")
    print(f"Starting NATS, Redis, a simulated Kubernetes cluster and {len(SERVICES)} services …", flush=True)
    restarts: list[str] = []
    async with Platform(home, notify=restarts.append) as platform:
        print(f"Ready after {platform.timings['ready']:.1f} s.", flush=True)
        async with open_scenario(plan, platform) as scenario:
            outcome = await scenario.run_demo()
        print("Stopping …", flush=True)
    expected = f"{plan.kill} ended with code -{int(signal.SIGKILL)};"
    outcome.restarts.extend(line for line in restarts if not line.startswith(expected))
    return outcome


@contextmanager
def _home(keep: Path | None) -> Iterator[Path]:
    """The directory of the demo; removed at the end unless it was named."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="tessera-demo-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
        return
    if keep.exists() and any(keep.iterdir()):
        raise Failure(Exit.USAGE, f"demo: {keep} is not empty; name a new directory with --keep")
    yield keep


def _write_nodes(home: Path, nodes: Sequence[NodeRow]) -> None:
    """Write the nodes where the platform looks for them, so that `tessera up` on a kept directory has the same ones."""
    folder = home / "cluster"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nodes.yaml").write_text(json.dumps([node.model_dump(exclude_defaults=True) for node in nodes], indent=1))


def _cancel_at_signal(showing: asyncio.Future[DemoOutcome]) -> asyncio.Event:
    """The first Ctrl-C ends the show, which stops everything in order; more of them do not hurry it."""
    interrupted = asyncio.Event()

    def end() -> None:
        if not interrupted.is_set():
            interrupted.set()
            showing.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, end)
    return interrupted


def _last_words(outcome: DemoOutcome, keep: Path | None) -> list[str]:
    kept = [f"All is kept: `tessera up --home {keep}`, `tessera ls --home {keep}`."]
    return [
        *summary(outcome),
        "All is well." if outcome.ok else "NOT well: see above.",
        *(kept if keep else []),
        "Go on: `tessera up`, and `tessera apply`, `tessera submit` in another terminal.",
    ]
