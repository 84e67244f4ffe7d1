"""
Pods of a simulated cluster in a file, so that they outlive its process: written as it ends, read as the next begins.

Programs went on meanwhile, as they do on machines whose API server is away. Nodes are not kept: they are in a file of
their own. A process that is killed writes nothing, and its pods are gone.
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from tessera.kernel.errors import StartupError
from tessera_local.cluster.machines.kubelet import PodRun
from tessera_schemas.base import Json


class SavedPods(BaseModel):
    """Every object but nodes by resource, the pods on kubelets by UID, and the counters that give versions and UIDs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int
    uids: int
    objects: dict[str, list[Json]]
    runs: dict[str, PodRun]


def write_saved(path: Path, saved: SavedPods) -> None:
    """Replace the file in one step, readable by its owner only."""
    fresh = path.with_suffix(".new")
    fresh.touch(mode=0o600)
    fresh.write_bytes(saved.model_dump_json().encode())
    fresh.replace(path)


def take_saved(path: Path) -> SavedPods | None:
    """
    Contents of the file, which is gone afterwards: pods of a process that is killed later must not come back as they
    once were. None without a file. Raises StartupError for one that cannot be read.
    """
    try:
        saved = SavedPods.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise StartupError(f"{path}: pods cannot be read from it; delete it to start without them") from error
    path.unlink()
    return saved
