"""What each group of users' pods amounted to at the last look: it is looked at several times on its way to a node."""

from dataclasses import dataclass

from tessera.binder.adoption.groups import Group, size_of
from tessera.binder.adoption.owners import Owners
from tessera.binder.adoption.reading import Json, mapping
from tessera.binder.adoption.spec import Adoption, spec_of
from tessera.binder.adoption.volume_claims import VolumeClaims
from tessera.binder.adoption.volumes import claim_names
from tessera_schemas.reasons import Reason

REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class _Look:
    """All that the answer follows from. What an informer shows is never changed in place, only replaced."""

    group: Group
    pods: tuple[Json, ...]
    owner: Json | None
    found: Adoption | Reason

    def is_of(self, group: Group, pods: list[Json], owner: Json | None) -> bool:
        if len(pods) != len(self.pods) or self.group != group or self.owner is not owner:
            return False
        return all(before is now for before, now in zip(self.pods, pods, strict=True))


class Adoptions:
    """Shared by whoever asks, so that one answer serves to submit, to compare and to claim."""

    def __init__(self, owners: Owners, volumes: VolumeClaims) -> None:
        self._owners, self._volumes = owners, volumes
        self._known: dict[str, _Look] = {}

    async def of(self, group: Group, waiting: list[Json]) -> Adoption | Reason:
        """The job that these pods amount to, as their owner is now. Raises ApiError, Transient."""
        owner = None if group.owner is None else await self._owners.look(group.owner)
        if any(claim_names(mapping(pod, "spec")) for pod in waiting):
            return await self._with_claims(group, waiting, owner)
        known = self._known.get(group.id)
        if known is not None and known.is_of(group, waiting, owner):
            return known.found
        size = size_of(group, owner, waiting)
        found = size if isinstance(size, Reason) else spec_of(group, waiting, size, owner)
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[group.id] = _Look(group, tuple(waiting), owner, found)
        return found

    async def _with_claims(self, group: Group, waiting: list[Json], owner: Json | None) -> Adoption | Reason:
        """Claims change while their pods do not, so that nothing is remembered."""
        size = size_of(group, owner, waiting)
        if isinstance(size, Reason):
            return size
        pods = await self._volumes.placeable(group.namespace, waiting)
        return pods if isinstance(pods, Reason) else spec_of(group, pods, size, owner)

    def forget(self, group_id: str) -> None:
        """Nothing of it waits."""
        self._known.pop(group_id, None)
