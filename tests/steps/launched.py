"""
Pods of a job with a launcher as processes of this machine, made of what the binder makes pods of.

Environment, command and lists of hosts are the binder's. In the place of the pods' names stand addresses of loopback,
in that of folders in the image those of the test.
"""

import json
import re
import secrets
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tessera.binder.decide.pods import pod_of
from tessera.binder.launchers.naming import service_name
from tessera_local.free_port import free_port
from tessera_schemas.base import Json
from tessera_schemas.job import JobSpec
from tests.steps.pods import ROOT, Pods, ending
from tests.unit.binder.binder_builders import RUN, job, node, run

OF_THE_IMAGE = "/app"
"""Where the programs of the examples lie in their image; in the test's folder here."""


def shown(language: str, begins: str) -> list[str]:
    """Blocks of the page in a language that begin so."""
    page = (ROOT / "docs" / "launchers.md").read_text()
    return re.findall(rf"^```{language}\n({begins}.*?)^```", page, re.DOTALL | re.MULTILINE)


def shown_job(launcher: str) -> JobSpec:
    """The job of a launcher as the page shows it."""
    jobs = [yaml.safe_load(block) for block in shown("yaml", "launcher: ")]
    (found,) = [each for each in jobs if each["launcher"] == launcher]
    return JobSpec.model_validate_json(json.dumps({"name": "shown", "queue": "research", **found}))


@contextmanager
def launched_pods(
    program: Path, folder: Path, spec: JobSpec, image: Mapping[str, str], port: str = "29500"
) -> Iterator[Pods]:
    """A run of the job. `image`: variables that its image has; `port`: where rank 0 listens, a free one here."""
    key, tessera = folder / "key", folder / "tessera"
    key.write_bytes(secrets.token_bytes(32))
    made = Pods(folder, f"j-{secrets.token_hex(6)}")
    names = {
        f"{RUN}-{{rank}}.{service_name(RUN)}": made.host(0).removesuffix("0") + "{rank}",
        "/tessera-key/key": str(key),
    }
    names |= {f"{RUN}-{rank}.{service_name(RUN)}": made.host(rank) for rank in range(spec.pods())}
    names |= {f"{OF_THE_IMAGE}/": f"{folder}/", "29600": str(free_port()), port: str(free_port())}
    names |= {f"/tessera/{part}/": f"{tessera}/{part}/" for part in ("bin", "fallback")}
    here = _renamed(names)
    with ending(made):
        for rank in range(spec.pods()):
            body = pod_of(job(spec), run(spec), rank, spec, 7, node())["spec"]
            (main,) = body["containers"]
            environment = _environment(main, here) | {"TESSERA_JOB_ID": made.job}
            environment["TMPDIR"] = made.temporary_of(rank)
            if rank == 0 and "initContainers" in body:
                installed = _environment(body["initContainers"][0], here)
                subprocess.run([program, "install", tessera], check=True, env=installed)
            made.pods.append(
                subprocess.Popen(
                    [here(word) for word in (*main["command"], *main["args"])],
                    cwd=folder,
                    env=dict(image) | environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE if rank == 0 else None,
                    stderr=subprocess.PIPE if rank == 0 else None,
                )
            )
        yield made


def _renamed(names: Mapping[str, str]) -> Callable[[str], str]:
    """Names in a text by others, longer ones first."""
    sought = re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)))
    return lambda text: sought.sub(lambda found: names[found[0]], text)


def _environment(container: Json, here: Callable[[str], str]) -> dict[str, Any]:
    return {entry["name"]: here(entry["value"]) for entry in container["env"]}
