"""A job with elastic roles that has grown as far as it could, from which pods can move between its roles."""

from typing import Any

from tessera_schemas.facts import PodsMade
from tessera_schemas.job import Role
from tests.builders import admitted, job_spec, role
from tests.rounds import Rounds, share


def named(name: str, least: int, most: int | None, gpus: int = 1, **more: Any) -> Role:
    made: Role = role(replicas=least, max_replicas=most, gpus=gpus, mixed_models=True, **more)
    return made.model_copy(update={"name": name})


def rl_job(*roles: Role, nodes: dict[str, int] | None = None, quota: int = 8, settled: bool = True) -> Rounds:
    """A job of a trainer of 2 to 6 pods and rollouts of 1 to 6, which has grown as far as it could."""
    both = roles or (named("trainer", 2, 6), named("rollout", 1, 6))
    rounds = Rounds(share("research", quota, parent=None), nodes=nodes or {"node-a": 8}, grow_after_seconds=0)
    rounds.commit(admitted("rl", job_spec(*both, name="rl")))
    if settled:
        settle(rounds)
    return rounds


def settle(rounds: Rounds) -> None:
    """Until the run is as large as it gets: pods that it grows by are made at once."""
    while rounds.round(plans=False) or make(rounds):
        pass


def make(rounds: Rounds) -> bool:
    run = rounds.run("rl")
    ranks = tuple(e.placement.rank for e in run.extra if not e.uid and not e.leaving) if run is not None else ()
    if ranks:
        uids = tuple(f"more-{rank}" for rank in ranks)
        rounds.commit(PodsMade(kind="pods_made", run_id=run.run_id, uids=uids, ranks=ranks))
    return bool(ranks)
