"""
GPU models of a gang: whose pods are on one model is tried on one model after the other, as a gang bound to it.

A gang bound to a model asks for nodes of that model, as if its owner had named it: so everything that is known of kinds
of pods, their room and their nodes serves for it, and models nest inside a quota's flavor. Where the nodes leave no
choice the gang is tried as it is.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice, product

from tessera.domain.devices.resources import RoleNeed
from tessera.domain.entities import Job
from tessera.domain.storing.fast import replace
from tessera.domain.work.gang import Gang, gang_of
from tessera.engine.placement.feasible_nodes import FeasibleNodes
from tessera.engine.placement.fits import BundleKind, kind_of

ALTERNATIVES_MAX = 64
"""So many choices of models are tried for a gang whose roles choose each for itself: three roles of four models."""

FindBest = Callable[[BundleKind], tuple[int, str] | None]
"""The best node for a kind as cost and name, the least is the best; None where none has room."""


def alternatives(gang: Gang, places: FeasibleNodes, find_best: FindBest | None = None) -> tuple[Gang, ...]:
    """
    The gang once for each choice of GPU models, bound to it; none where no model suits roles that are on one together.

    In the order that the owner wants, else by `find_best`: the model first whose best node is.
    """
    # Bound gangs are cached by choice: the same objects come back, so that verdicts kept by gang are found.
    # Roles that choose apart from each other give the product of their choices; nearly all gangs are one group.
    choices = [_choices(name, roles, places, find_best) for name, roles in gang.one_model.items()]
    several = [each for each in choices if each is not None]
    return tuple(bind_to(gang, each) for each in islice(product(*several), ALTERNATIVES_MAX)) if several else (gang,)


def on_each_model(job: Job, places: FeasibleNodes) -> tuple[Job, ...]:
    """The job once for each choice of models, for who seeks runs to take: those of one model make room together."""
    gangs = alternatives(job.gang, places)
    return tuple(job if gang is job.gang else replace(job, roles=gang) for gang in gangs) or (job,)


def _choices(
    name: str, roles: Sequence[RoleNeed], places: FeasibleNodes, find_best: FindBest | None
) -> list[tuple[str, str]] | None:
    """The models on which the roles may be together; None where that is no question."""
    order = roles[0].model_order
    if not order and sum(role.replicas for role in roles) == 1:
        return None
    models = [places.models(kind_of((role.need,))) for role in roles]
    # Where no node suits one of them that is why it waits, and all are of one model where there is no other.
    if not all(models) or len({model for each in models for model in each}) == 1:
        return None
    common = [model for model in models[0] if all(model in each for each in models)]
    # An owner may want what no score knows; else the pool's scoring keeps what others can do without the least.
    if order:
        common.sort(key=lambda model: order.index(model) if model in order else len(order))
    elif find_best is not None:
        ranks = {model: find_best(kind_of((on_model(roles[0], model).need,))) for model in common}
        common.sort(key=lambda model: (ranks[model] is None, ranks[model] or ()))
    return [(name, model) for model in common]


def on_model(role: RoleNeed, model: str) -> RoleNeed:
    """The role bound to a model."""
    return replace(role, need=replace(role.need, gpu_models=(model,)))


@lru_cache(maxsize=16_384)
def bind_to(gang: Gang, choice: tuple[tuple[str, str], ...]) -> Gang:
    """The gang with the model of each of these groups of roles."""
    of = dict(choice)
    return gang_of(tuple(on_model(role, of[role.one_model]) if role.one_model in of else role for role in gang))
