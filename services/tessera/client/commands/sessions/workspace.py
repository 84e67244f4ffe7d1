"""`workspace`: a program with a port in a pod, such as an editor, reached as a notebook is."""

from typing import Annotated

import typer

from tessera.client.commands.context import AccessOptions, command
from tessera.client.commands.sessions.options import SessionOptions, session_of
from tessera.client.commands.sessions.reaching import reach, submit_and_reach, volumes_of
from tessera.client.outcomes import Exit, Failure
from tessera_schemas.base import Json


@command
async def workspace(
    at: AccessOptions,
    options: SessionOptions,
    image: Annotated[str | None, typer.Argument(help="Image with a program that listens", show_default=False)] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="After `--`; else the image's entry point", show_default=False),
    ] = None,
    volume: Annotated[
        list[str] | None, typer.Option(metavar="CLAIM:/PATH[:ro]", help="Volume claim of the namespace, and where")
    ] = None,
    port: Annotated[int, typer.Option(help="Port on which the pod's program listens", min=1, max=65_535)] = 8080,
    job: Annotated[str | None, typer.Option("--job", help="Reach a workspace that is there already")] = None,
    ingress: Annotated[bool, typer.Option("--ingress", help="Reach it by an Ingress of the configuration")] = False,
) -> Exit | None:
    """
    Submit a program with a port and forward a local port to it: `tessera workspace IMAGE --port 8080 --gpus 1`.

    Let it listen on 127.0.0.1, which a port-forward reaches and no other pod does, or ask for a password of its own.
    With --ingress, which prints the address for a browser, it has to, and serves below TESSERA_SESSION_PATH.
    Ctrl-C ends the port-forward and not the workspace, which `--job JOB` reaches again, `tessera pause` stops and
    `tessera cancel` ends. You need kubectl and the rights to get pods and create `pods/portforward` in the namespace.
    """
    if (image is None) == (job is None):
        raise Failure(Exit.USAGE, "workspace: name an image, or with --job a workspace that is there; one of them")
    if job is not None:
        return await reach(at, job, port)
    template: Json = {"ports": [{"port": port, "name": "workspace"}], "volumes": volumes_of(volume or ())}
    session: Json = {"kind": "workspace"} | ({"ingress": True} if ingress else {})
    asked = await session_of(at, options, image or "", words or (), template, {"session": session})
    return await submit_and_reach(at, asked, options.key, port)
