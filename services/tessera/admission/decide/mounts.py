"""Mapped volumes of submitted jobs, made volumes of the claims to which the configuration maps their paths. Pure."""

import posixpath
from collections.abc import Iterator, Sequence

from tessera.domain.queues import QueueTree
from tessera_schemas.job import JobSpec, Role
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.reading import refusal
from tessera_schemas.work.pod_template import VOLUMES_MAX, Mount, Volume


def fill_mounts(spec: JobSpec, tenant: str, tree: QueueTree | None) -> tuple[JobSpec, tuple[str, ...]]:
    """
    The spec with a claim for each mapped volume that the configuration maps, and for each mount that is in every pod;
    and what was decided, in words.
    """
    mounts, notes = mounts_of(tenant, tree), dict[str, None]()
    is_asked = any(volume.kind == "mapped" for role in spec.roles for volume in role.template.volumes)
    if not (is_asked or any(mount.in_every_pod for mount in mounts)):
        return spec, ()
    roles = [_filled(role, mounts, notes) for role in spec.roles]
    return spec.model_copy(update={"roles": tuple(roles)}), tuple(notes)


def mounts_of(tenant: str, tree: QueueTree | None) -> list[Mount]:
    """What the tenant's jobs may mount, the deepest path first."""
    found = [mount for mount in tree.mounts if not mount.tenants or tenant in mount.tenants] if tree else []
    return sorted(found, key=lambda mount: (-len(mount.path), mount.path))


def missing_in(role: Role, mounts: Sequence[Mount]) -> list[Mount]:
    """Mounts of every pod that the role's pods lack, those of short paths first: others may be within them."""
    there = {posixpath.normpath(volume.mount_path) for volume in role.template.volumes}
    return [mount for mount in reversed(mounts) if mount.in_every_pod and mount.path not in there]


def crowded_out(spec: JobSpec, tenant: str, tree: QueueTree) -> Iterator[Reason]:
    """A refusal for each role that has no room for the mounts of every pod beside volumes of its own."""
    for index, role in enumerate(spec.roles):
        missing = missing_in(role, mounts_of(tenant, tree))
        if len(role.template.volumes) + len(missing) > VOLUMES_MAX:
            paths = ", ".join(mount.path for mount in missing)
            why = f"the configuration mounts {paths} in every pod, and {VOLUMES_MAX} volumes is the most"
            yield refusal(Code.INVALID_FIELD, f"roles[{index}].template.volumes", why)


def unmapped(spec: JobSpec, tenant: str, tree: QueueTree) -> Iterator[Reason]:
    """A refusal for each volume that no mount of the configuration holds."""
    for index, role in enumerate(spec.roles):
        for at, volume in enumerate(role.template.volumes):
            if volume.kind == "mapped":
                paths = ", ".join(sorted(mount.path for mount in mounts_of(tenant, tree))) or "none"
                why = f"no mount of the configuration holds {volume.path}; mapped are: {paths}"
                yield refusal(Code.INVALID_FIELD, f"roles[{index}].template.volumes[{at}].path", why)


def _filled(role: Role, mounts: Sequence[Mount], notes: dict[str, None]) -> Role:
    everywhere = missing_in(role, mounts)
    if len(role.template.volumes) + len(everywhere) > VOLUMES_MAX:
        everywhere = []  # refused by name (`crowded_out`)
    more = (Volume(kind="mapped", mount_path=mount.path, path=mount.path) for mount in everywhere)
    volumes = tuple(_claimed(volume, mounts, notes) for volume in (*role.template.volumes, *more))
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
