"""A LeaderWorkerSet: each of its groups is a gang, a leader with its workers, which the pods name. Pure."""

from typing import ClassVar

from tessera.binder.workloads.mark_table import LWS
from tessera.binder.workloads.port import GangMark, KindRights, Workload
from tessera.binder.workloads.reading import no, text
from tessera_schemas.base import Json
from tessera_schemas.reasons import Code, Reason

LWS_API = "leaderworkerset.x-k8s.io/v1"
MARK = GangMark((f"{LWS}group-key",), size=f"{LWS}size", made_by=(LWS_API, "LeaderWorkerSet", f"{LWS}name"))


class LeaderWorkerSet(Workload):
    api_group: ClassVar[str] = "leaderworkerset.x-k8s.io"
    kinds: ClassVar[tuple[str, ...]] = ("LeaderWorkerSet",)
    marks: ClassVar[tuple[GangMark, ...]] = (MARK,)
    index_labels: ClassVar[tuple[str, ...]] = (f"{LWS}worker-index",)
    rights: ClassVar[tuple[KindRights, ...]] = (
        KindRights("leaderworkerset.x-k8s.io", ("leaderworkersets",), ("get",)),
    )

    def never_whole(self, owner: Json) -> Reason | None:
        """Workers that are made once their leader is ready cannot start with it."""
        if text(owner, "spec", "startupPolicy") != "LeaderReady":
            return None
        way_out = "workers that are made once their leader is ready cannot start together with it; use LeaderCreated"
        return no(Code.NOT_SUPPORTED_YET, "LeaderWorkerSet.spec.startupPolicy", way_out)
