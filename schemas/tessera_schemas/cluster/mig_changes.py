"""
Changes of a node's MIG geometry through NVIDIA's mig-manager: the proposal, and the records.

The mig-manager knows named configurations and cuts all GPUs of a node to the one that the node's label
`nvidia.com/mig.config` names. It answers in `nvidia.com/mig.config.state`.
"""

from typing import Literal

from tessera_schemas.base import Count, JobId, Millis, NodeName, Positive
from tessera_schemas.cluster.pools import ConfigName
from tessera_schemas.shard.records import AnyFact, AnyRecord


class MigChangeProposed(AnyFact, sender="reclamation"):
    """
    Cut the GPUs of an idle node to `config` so that waiting job `job_id` can start there.

    A pure function of (state at `basis_n`, `ts`, engine, policy). The committer refuses it if the node is no longer
    idle, or a bound of its pool is reached.
    """

    kind: Literal["mig_change_proposed"]
    job_id: JobId
    node: NodeName
    config: ConfigName
    basis_n: Count
    ts: Millis
    engine: str
    policy: Count


class MigChangeBegun(AnyRecord, story="node {node} is being cut to {config} for it"):
    """
    The mig-manager is to cut the `gpus` GPUs of a node to `config`. From here on the node takes nothing new.

    `before` names the configuration that it has.
    """

    kind: Literal["mig_change_begun"]
    job_id: JobId
    node: NodeName
    config: ConfigName
    before: ConfigName
    gpus: Positive


class MigChangeEnded(AnyRecord):
    """
    End of the change of a node; no other one begins on it before `until_ts`. `times` changes in a row have failed.

    done: the mig-manager says so, and the instances are there. undone: the node is as before a change that failed.
    given_up: the configuration of its pool no longer has it. gone: the cluster no longer has the node. With `undo` the
    node is still closed: it is being cut back to what it was.
    """

    kind: Literal["mig_change_ended"]
    node: NodeName
    outcome: Literal["done", "failed", "undone", "given_up", "gone"]
    until_ts: Millis
    times: Count = 0
    undo: bool = False
