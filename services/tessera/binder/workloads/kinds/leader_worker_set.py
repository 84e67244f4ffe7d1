"""A LeaderWorkerSet: each of its groups is a gang, a leader with its workers, which the pods name. Pure."""

import hashlib
from collections.abc import Sequence
from typing import ClassVar

from tessera.binder.workloads.mark_table import LWS
from tessera.binder.workloads.port import GangMark, Group, KindRights, Workload
from tessera.binder.workloads.reading import mapping, no, text, whole
from tessera.binder.workloads.references import OwnerRef
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code, Reason

GROUPS_MAX = 1000
LWS_API = "leaderworkerset.x-k8s.io/v1"
INDEX_LABEL = f"{LWS}worker-index"
MARK = GangMark((f"{LWS}group-key",), size=f"{LWS}size", made_by=(LWS_API, "LeaderWorkerSet", f"{LWS}name"))


class LeaderWorkerSet(Workload):
    api_group: ClassVar[str] = "leaderworkerset.x-k8s.io"
    kinds: ClassVar[tuple[str, ...]] = ("LeaderWorkerSet",)
    marks: ClassVar[tuple[GangMark, ...]] = (MARK,)
    index_labels: ClassVar[tuple[str, ...]] = (INDEX_LABEL,)
    rights: ClassVar[tuple[KindRights, ...]] = (
        KindRights("leaderworkerset.x-k8s.io", ("leaderworkersets",), ("get",)),
    )

    def lives_by(self, group: Group, pod: Json) -> OwnerRef:
        """The set, which makes its pods through StatefulSets that the binder may not read."""
        name = text(pod, "metadata", "labels", MARK.made_by[2])
        return OwnerRef(LWS_API, "LeaderWorkerSet", group.namespace, name) if name else super().lives_by(group, pod)

    def anchor(self, group: Group, pods: Sequence[Json]) -> str:
        """Identity of the leader alone: the maker of its workers is made anew with each restart of the group."""
        leaders = [pod for pod in pods if text(pod, "metadata", "labels", INDEX_LABEL) == "0"]
        return super().anchor(group, leaders or pods)

    def keeps(self, owner: Json, gang: str) -> bool:
        """Unless it was scaled below that group, whose key is made of its leader's name."""
        meta, wanted = mapping(owner, "metadata"), whole(owner, "spec", "replicas")
        leader = f"{text(meta, 'namespace')}/{text(meta, 'name')}"
        beyond = (f"{leader}-{number}".encode() for number in range(1 if wanted is None else wanted, GROUPS_MAX))
        return all(hashlib.sha1(name, usedforsecurity=False).hexdigest() != gang for name in beyond)

    def never_whole(self, owner: Json) -> Reason | None:
        """Workers that are made once their leader is ready cannot start with it."""
        if text(owner, "spec", "startupPolicy") != "LeaderReady":
            return None
        way_out = "workers that are made once their leader is ready cannot start together with it; use LeaderCreated"
        return no(Code.NOT_SUPPORTED_YET, "LeaderWorkerSet.spec.startupPolicy", way_out)
