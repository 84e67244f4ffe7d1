"""`cluster`: what an installation on Kubernetes needs besides manifests. The Helm chart's Jobs run these commands."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer

from tessera.client.cluster.uninstalling import release_pods, stop_deployment
from tessera.client.commands.context import command
from tessera.client.connect.settings import ClientSettings
from tessera.client.outcomes import Exit, Failure
from tessera.kernel.clock import SystemClock
from tessera.kernel.kubernetes.cluster import HttpCluster
from tessera.kernel.kubernetes.kubeconfig import cluster_at
from tessera.kernel.ports import ApiError
from tessera.kernel.process.settings import load_settings
from tessera.kernel.provisioning.secrets import synchronise
from tessera_schemas.subjects import MAIN_SHARD

Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Where the services are")]
Shards = Annotated[list[str] | None, typer.Option("--shard", help="May be repeated", show_default=MAIN_SHARD)]

cluster = typer.Typer(help="Identities and pods of an installation on Kubernetes.", no_args_is_help=True)


@cluster.command("sync-secrets")
@command
async def sync_secrets(
    credentials: Annotated[Path, typer.Option(help="Directory of the identities")] = Path("credentials"),
    namespace: Namespace = "tessera-system",
    release: Annotated[str, typer.Option(help="What the names of the Secrets begin with")] = "tessera",
    shard: Shards = None,
) -> None:
    """Bring a directory of identities and the Secrets of a namespace to the same; what neither has is made."""
    credentials.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with _connected() as api:
        written = await synchronise(credentials, shard or [MAIN_SHARD], api, namespace, release)
    print("\n".join(f"wrote {name}" for name in written) or f"namespace {namespace}: everything is there already")


@cluster.command("release-pods")
@command
async def release_pods_(
    namespace: Namespace = "tessera-system",
    shard: Shards = None,
    stop: Annotated[list[str] | None, typer.Option(help="The binder's Deployment, stopped first")] = None,
    seconds: Annotated[float, typer.Option(help="How long its pods may take to end")] = 120.0,
) -> None:
    """Before an uninstall: stop the binder, and take our finalizer off all pods. What runs goes on."""
    async with _connected() as api:
        for name in stop or ():
            await stop_deployment(api, SystemClock(), namespace, name, seconds)
        print(f"{await release_pods(api, shard or [MAIN_SHARD])} pods released")


@asynccontextmanager
async def _connected() -> AsyncIterator[HttpCluster]:
    """The Kubernetes API by the settings, else the pod's own account or a kubeconfig; its refusals become Failures."""
    settings = load_settings(ClientSettings)
    api = cluster_at(settings.cluster_url, settings.cluster_token.get_secret_value())
    try:
        yield api
    except ApiError as error:
        raise Failure(Exit.UNAVAILABLE, f"Kubernetes API at {api.url}: {error}") from error
    finally:
        await api.close()
