"""Mapped volumes of submitted jobs, made volumes of the claims to which the configuration maps their paths. Pure."""

import posixpath
from collections.abc import Iterator, Sequence

from tessera.domain.queues import QueueTree
from tessera_schemas.job import JobSpec, Role
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.reading import refusal
from tessera_schemas.work.pod_template import Mount, Volume


def fill_mounts(spec: JobSpec, tenant: str, tree: QueueTree | None) -> tuple[JobSpec, tuple[str, ...]]:
    """The spec with a claim for each mapped volume that the configuration maps, and what was decided, in words."""
    if not any(volume.kind == "mapped" for role in spec.roles for volume in role.template.volumes):
        return spec, ()
    mounts, notes = mounts_of(tenant, tree), dict[str, None]()
    roles = [_filled(role, mounts, notes) for role in spec.roles]
    return spec.model_copy(update={"roles": tuple(roles)}), tuple(notes)


def mounts_of(tenant: str, tree: QueueTree | None) -> list[Mount]:
    """What the tenant's jobs may mount, the deepest path first."""
    found = [mount for mount in tree.mounts if not mount.tenants or tenant in mount.tenants] if tree else []
    return sorted(found, key=lambda mount: (-len(mount.path), mount.path))


def unmapped(spec: JobSpec, tenant: str, tree: QueueTree) -> Iterator[Reason]:
    """A refusal for each volume that no mount of the configuration holds."""
    for index, role in enumerate(spec.roles):
        for at, volume in enumerate(role.template.volumes):
            if volume.kind == "mapped":
                paths = ", ".join(sorted(mount.path for mount in mounts_of(tenant, tree))) or "none"
                why = f"no mount of the configuration holds {volume.path}; mapped are: {paths}"
                yield refusal(Code.INVALID_FIELD, f"roles[{index}].template.volumes[{at}].path", why)


def _filled(role: Role, mounts: Sequence[Mount], notes: dict[str, None]) -> Role:
    volumes = tuple(_claimed(volume, mounts, notes) for volume in role.template.volumes)
    return role.model_copy(update={"template": role.template.model_copy(update={"volumes": volumes})})


def _claimed(volume: Volume, mounts: Sequence[Mount], notes: dict[str, None]) -> Volume:
    """The volume of the claim that holds its path; the volume itself where none does, or for any other kind."""
    path = "/" + posixpath.normpath(volume.path).lstrip("/")
    mount = next((mount for mount in mounts if f"{path}/".startswith(f"{mount.path}/")), None)
    if volume.kind != "mapped" or mount is None:
        return volume
    folder = path[len(mount.path) + 1 :]
    claimed = {"kind": "claim", "name": mount.claim, "path": "", "sub_path": folder}
    read_only = volume.read_only or mount.read_only
    where = f"{folder} of claim {mount.claim}" if folder else f"claim {mount.claim}"
    notes[f"{volume.mount_path}: {where}{', read-only' if read_only else ''}, by mounts of the configuration"] = None
    return volume.model_copy(update=claimed | {"read_only": read_only})
