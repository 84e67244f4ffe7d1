"""
`notebook`: a Jupyter server in a pod, reached by a port-forward with the caller's own right, or by an Ingress.

The pod makes its token itself, in a file that its own user alone reads, and Jupyter reads it from there. It never is in
the job's spec, hence in no ledger, event or pod object, and in no process's words; who may `exec` in the pod reads it.
Jupyter listens on the pod's loopback address, which a port-forward reaches and no other pod does; behind an Ingress on
all of its addresses, so that the token alone keeps others out.
"""

from pathlib import Path
from typing import Annotated

import typer

from tessera.client.commands.context import AccessOptions, ago, command
from tessera.client.commands.sessions import idle_watch
from tessera.client.commands.sessions.options import SessionOptions, session_of
from tessera.client.commands.sessions.reaching import TOKEN_FILE, reach, submit_and_reach, volumes_of
from tessera.client.outcomes import Exit, Failure
from tessera_schemas.base import Json

JUPYTER = ("jupyter", "lab", "--no-browser", "--allow-root")
BELOW_ITS_PATH = ("/bin/sh", "-c", 'exec "$@" "--ServerApp.base_url=$TESSERA_SESSION_PATH"', "jupyter")
"""Start of Jupyter behind an Ingress, of which the pod alone knows the path."""
WATCH = Path(idle_watch.__file__).read_text(encoding="utf-8")
WITH_TOKEN = f"""\
umask 077
od -An -N24 -tx1 /dev/urandom | tr -d ' \\n' >{TOKEN_FILE}.new && mv -f {TOKEN_FILE}.new {TOKEN_FILE} || exit 1
JUPYTER_TOKEN_FILE={TOKEN_FILE}
export JUPYTER_TOKEN_FILE
watch=$1 port=$2
shift 2
if [ "${{TESSERA_SESSION_IDLE_SECONDS:-0}}" != 0 ]; then
  for python in python3 python; do
    command -v "$python" >/dev/null && exec "$python" -c "$watch" "$port" "$@"
  done
  echo "tessera: there is no python in the image, so that nothing stops this notebook when nobody uses it" >&2
fi
exec "$@"
"""
"""
Make a token, and become the program of the arguments, or what watches it where idleness is to stop it.

A run that follows has a token of its own. The first argument is the source of `idle_watch`, the second the port.
"""


@command
async def notebook(
    at: AccessOptions,
    options: SessionOptions,
    image: Annotated[str | None, typer.Argument(help="Image with Jupyter and /bin/sh", show_default=False)] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="After `--`; else jupyter lab on --port", show_default=False),
    ] = None,
    volume: Annotated[
        list[str] | None, typer.Option(metavar="CLAIM:/PATH[:ro]", help="Volume claim of the namespace, and where")
    ] = None,
    port: Annotated[int, typer.Option(help="Port on which the pod's program listens", min=1, max=65_535)] = 8888,
    job: Annotated[str | None, typer.Option("--job", help="Reach a notebook that is there already")] = None,
    ingress: Annotated[bool, typer.Option("--ingress", help="Reach it by an Ingress of the configuration")] = False,
    idle: Annotated[int | None, ago("--idle", says="Stop it after so long without use, as 2h; 0: never")] = None,
    idle_warning: Annotated[int | None, ago("--idle-warning", says="Warn so long before (default: 10m)")] = None,
    on_idle: Annotated[
        str | None, typer.Option(metavar="pause|end", help="What it does then (default: pause)", show_default=False)
    ] = None,
) -> Exit | None:
    """
    Submit a Jupyter server and forward a local port to it: `tessera notebook IMAGE --gpus 1 --volume work:/workspace`.

    With --ingress it prints the address for a browser, and ends.

    Ctrl-C ends the port-forward and not the notebook, which `--job JOB` reaches again, `tessera pause` stops and
    `tessera cancel` ends. You need kubectl and a kubeconfig with the rights to get pods, to create `pods/portforward`
    and to get and create `pods/exec` in the namespace.
    """
    if (image is None) == (job is None):
        raise Failure(Exit.USAGE, "notebook: name an image, or with --job a notebook that is there; one of them")
    if job is not None:
        return await reach(at, job, port)
    told = {"idle_seconds": idle, "warning_seconds": idle_warning, "on_idle": on_idle, "ingress": ingress or None}
    session: Json = {"kind": "notebook"} | {name: value for name, value in told.items() if value is not None}
    listens = (f"--ServerApp.ip={'0.0.0.0' if ingress else '127.0.0.1'}", f"--ServerApp.port={port}")  # noqa: S104
    jupyter = (*(BELOW_ITS_PATH if ingress else ()), *JUPYTER, *listens, "--ServerApp.port_retries=0")
    starts = ("/bin/sh", "-c", WITH_TOKEN, "notebook", WATCH, str(port), *(words or jupyter))
    template: Json = {"ports": [{"port": port, "name": "notebook"}], "volumes": volumes_of(volume or ())}
    asked = await session_of(at, options, image or "", starts, template, {"session": session})
    return await submit_and_reach(at, asked, options.key, port)
