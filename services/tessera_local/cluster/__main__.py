"""Run the simulated cluster: `python -m tessera_local.cluster --nodes FILE --port N`."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path

from tessera.kernel.clock import SystemClock
from tessera.kernel.errors import StartupError
from tessera.kernel.process.limits import collect_rarely
from tessera_local.cluster.api.access import Access, access_from_file, access_of_identities
from tessera_local.cluster.api.server import ApiServer
from tessera_local.cluster.core import SimCluster
from tessera_local.cluster.machines.nodes import nodes_from_file
from tessera_local.cluster.objects.jobs import JobController
from tessera_local.cluster.objects.saved_pods import take_saved, write_saved
from tessera_local.cluster.objects.store import Options
from tessera_local.free_port import LOOPBACK


def main() -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code, 1 when start-up failed."""
    arguments = _arguments()
    try:
        _run(_serve(arguments))
    except (StartupError, OSError) as error:
        print(f"simulated cluster: {error}", file=sys.stderr)
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tessera_local.cluster", description="A simulated Kubernetes cluster.")
    parser.add_argument("--nodes", type=Path, help="nodes, as CSV of a public trace or as YAML")
    parser.add_argument("--host", default=LOOPBACK, help="where it listens; loopback unless told")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--certificate", type=Path, help="key and chain (PEM), with which it also serves TLS")
    parser.add_argument("--tls-port", type=int, default=0, help="where it serves TLS; 0 picks a free one")
    parser.add_argument("--port-file", type=Path, help="where to write the port once it is open")
    parser.add_argument("--pods-file", type=Path, help="keeps the pods from an orderly end to the next start")
    parser.add_argument("--tokens", type=Path, help="YAML: token -> {identity, verbs}; without it all is allowed")
    parser.add_argument("--credentials", type=Path, help="directory of `tessera init`: lets in whom that made")
    parser.add_argument("--start-ms", type=int, default=5, help="from bind to start")
    parser.add_argument("--history", type=int, default=10_000, help="changes that a watch may be behind")
    parser.add_argument("--odd-every", type=int, default=0, help="of so many versions one says null where it may")
    parser.add_argument("--jobs", action="store_true", help="also run a small controller of batch/v1 Jobs")
    parser.add_argument("--seed", type=int, default=1, help="of the UIDs")
    return parser.parse_args()


def _access(arguments: argparse.Namespace) -> Access:
    if arguments.credentials:
        return access_of_identities(arguments.credentials)
    return access_from_file(arguments.tokens) if arguments.tokens else Access()


async def _serve(arguments: argparse.Namespace) -> None:
    clock = SystemClock()
    nodes = nodes_from_file(arguments.nodes) if arguments.nodes else []
    access = _access(arguments)
    options = Options(start_ms=arguments.start_ms, history=arguments.history, odd_every=arguments.odd_every)
    cluster = SimCluster(clock, arguments.seed, options)
    if arguments.pods_file and (saved := take_saved(arguments.pods_file)):
        cluster.put_back(saved)
    for node in nodes:
        cluster.create("nodes", "", node)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = ApiServer(cluster, clock, access)
    port = await server.start(arguments.port, arguments.host)
    if arguments.certificate:
        await server.start_tls(arguments.certificate, arguments.tls_port, arguments.host)
    if arguments.port_file:
        partial = arguments.port_file.with_suffix(".partial")
        partial.write_text(str(port))
        partial.rename(arguments.port_file)  # whoever waits for the file finds it whole
    print(f"simulated cluster ready: http://{arguments.host}:{port} with {len(nodes)} nodes", flush=True)
    controller = asyncio.create_task(JobController(cluster, clock).run()) if arguments.jobs else None
    await stop.wait()
    if controller is not None:
        controller.cancel()
    await server.stop()
    if arguments.pods_file:
        write_saved(arguments.pods_file, cluster.saved())


def _run(serve: Coroutine[None, None, None]) -> None:
    collect_rarely()
    try:
        import uvloop
    except ImportError:  # not on every platform
        asyncio.run(serve)
    else:
        uvloop.run(serve)


if __name__ == "__main__":
    sys.exit(main())
