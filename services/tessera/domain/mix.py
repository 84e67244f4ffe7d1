"""
Mix of pods that the jobs of each pool ask for, learnt from the jobs taken in: integer state of the fold.

Each pod counts once for its kind, of one role at most `PODS_COUNTED`: a gang says less of what comes next than as many
jobs. Decisions do not look at the counts, which change with every job, but at the mix as it was when last settled:
after 50 arrivals, 150, 400 … and every 8,192 in the end. At first nothing is known, and what is placed wrongly then
stays wrong for long: so a general notion of GPU jobs, in terms of the pool's own CPU per GPU, stands in and fades out
over the first 400 arrivals. Of each of the pool's GPU models a few jobs are presumed that run on no other: without them
nothing is kept free of a scarce model until the first of its jobs was seen, and then it is too late.

**Prices** of the kinds are learnt outside, which takes seconds, and put here by a record. Until the mix that was
settled last is priced, kinds keep the price that they had, and a new one is worth the GPUs that it holds.

Of pods that claim GPUs or parts of them (DRA) only what they claim is learnt, apart from the kinds: their CPU says
nothing of what may be cut from a GPU beside them. A **piece** is what one set of expressions takes; those that make up
nearly all that was claimed are settled after as many pods as the mix is.

Bounded: `KINDS_MAX` kinds of a pool, of which the rarest make way. It forgets by counts: at `ARRIVALS_MAX` all are
halved. What is settled never depends on the order in which kinds were first seen.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tessera.domain.devices.resources import WHOLE_GPU, Need, Node, RoleNeed
from tessera.domain.storing.fast import replace
from tessera.domain.storing.later import later
from tessera.domain.table import Table
from tessera_schemas.cluster.labels import GPU_RESOURCE

PODS_COUNTED = 8
KINDS_MAX = 512
ARRIVALS_MAX = 16_384
SETTLED_AT = (50, 150, 400, 1200, 3000, 6000, 12_000)  # arrivals; then at `ARRIVALS_MAX`
PART_DROPPED = 8  # of the kinds one in so many makes way at once

FADES_OVER = 400  # arrivals
WEIGHT = 1000  # of one arrival
PRIOR_WEIGHT = 200 * WEIGHT  # of all that is presumed, at the start
USUAL_CPU_PER_GPU = 10_000  # thousandths of a CPU, where no node has a GPU

BOUND_FADES_OVER = 3000  # arrivals: kinds bound to a model are many, and each of them is rare
BOUND_PERCENT = 20  # of what is presumed
BOUND_MODELS_MAX = 32
PIECES_MAX = 16  # of one pool, since each of its nodes names them; the one of which least was claimed makes way
PIECES_PERCENT = 95  # of all that was claimed: nothing is kept whole for rarer ones
DEAREST = 16  # times the GPUs that it holds is the most that a pod is worth

# GPUs, thousandths of each, CPU in per cent of the pool's CPU per GPU, and how many of a hundred pods.
PRESUMED = (
    (0, 0, 80, 10),
    (1, 1000, 30, 10),
    (1, 1000, 60, 12),
    (1, 1000, 90, 24),
    (1, 1000, 130, 8),
    (1, 250, 30, 7),
    (1, 500, 60, 10),
    (1, 750, 60, 10),
    (2, 1000, 160, 4),
    (4, 1000, 320, 3),
    (8, 1000, 640, 2),
)
PRESUMED_BOUND = ((1000, 30, 20), (1000, 90, 50), (500, 60, 30))
"""Of jobs bound to one model: thousandths of one GPU, CPU as above, and how many of a hundred of them."""


@dataclass(frozen=True, slots=True, order=True)
class MixKind:
    """
    A kind of pod in the mix: `gpu_milli` of each of `gpus` devices, of any of `models` (none: of any).

    `gpu_resource` is the resource that the pod names for them, "" for none: those of a named model, else the pool's.
    """

    cpu_milli: int
    gpu_milli: int
    gpus: int
    models: tuple[str, ...] = ()
    gpu_resource: str = later("")


def kind_of(need: Need) -> MixKind:
    """A share counts as one GPU of so many thousandths, and several of one pod as pods that divide its CPU."""
    # Users' pods that name no resource are of NVIDIA's; they count as jobs that name none, which they mostly are alike.
    if need.gpus:
        return MixKind(need.cpu_milli, WHOLE_GPU, need.gpus, need.gpu_models, need.gpu_resource)
    if not need.gpu_milli:
        return MixKind(need.cpu_milli, 0, 0)
    return MixKind(-(-need.cpu_milli // need.gpu_parts), need.gpu_milli, 1, need.gpu_models, need.gpu_resource)


WeightedKinds = tuple[tuple[MixKind, int], ...]
"""Kinds with their weights, in the kinds' order."""


ClaimedPieces = tuple[tuple[str, ...], ...]
"""The usual pieces and all that are claimed, by the `selectors_digest` of each, in order; empty while not settled."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Count of pods of one kind that came into a pool."""

    key: str
    pool: str
    kind: MixKind
    count: int


@dataclass(frozen=True, slots=True)
class Mix:
    """
    One pool: how many pods were counted, of how many kinds, and the mix as it was last settled.

    `known` are kinds with their weights, in the kinds' order, and `settled` says how often there was a new one;
    `largest_cpu_milli` is of one node at that time. `prices` belong to the kinds in millionths of a GPU, none while
    nobody has priced them; they were learnt from what was settled for the `priced`-th time, for so many GPUs.

    `claimed` has how many thousandths of GPUs were claimed of each piece, by its `selectors_digest`, in their order, by
    `claiming` pods; `pieces` are those that decisions go by: the usual ones, and all.
    """

    pool: str
    arrivals: int = 0
    kinds: int = 0
    settle_at: int = 0
    settled: int = 0
    known: WeightedKinds = ()
    largest_cpu_milli: int = 0
    prices: tuple[int, ...] = ()
    priced: int = 0
    priced_gpus: int = 0
    claimed: tuple[tuple[str, int], ...] = later(())
    claiming: int = later(0)
    pieces: ClaimedPieces = later(())


def see(seen: Table[Seen], mixes: Table[Mix], nodes: Table[Node], pool: str, roles: Iterable[RoleNeed]) -> None:
    """Count the pods of a job that came into the pool. Equal sequences of calls give equal rows."""
    for role in roles:
        if not (role.need.mig_profile or role.need.claims):
            pods = role.replicas * (role.need.gpu_parts if role.need.gpu_milli else 1)
            _count(seen, mixes, pool, kind_of(role.need), min(pods, PODS_COUNTED))
    mix = mixes.get(pool)
    # Where none but claims came there are no kinds to settle.
    if mix is not None and mix.arrivals and mix.arrivals >= mix.settle_at:
        _settle(seen, mixes, nodes, mix)


def see_pieces(mixes: Table[Mix], pool: str, asked: Mapping[str, int], pods: int) -> None:
    """Count the thousandths of GPUs that so many pods of a job claim in each piece; nothing where they claim none."""
    if not asked:
        return
    mix = mixes.get(pool) or Mix(pool)
    amounts = Counter(dict(mix.claimed))
    amounts.update(asked)
    for piece in sorted(amounts, key=lambda piece: (-amounts[piece], piece))[PIECES_MAX:]:
        del amounts[piece]
    claiming, pieces = mix.claiming + pods, mix.pieces
    if claiming >= settle_at(mix.claiming):
        pieces = _usual(amounts), tuple(sorted(amounts))
    if claiming >= ARRIVALS_MAX:
        claiming //= 2
        amounts = Counter({piece: amount // 2 for piece, amount in amounts.items() if amount > 1})
    mixes.put(pool, replace(mix, claimed=tuple(sorted(amounts.items())), claiming=claiming, pieces=pieces))


def _usual(amounts: Mapping[str, int]) -> tuple[str, ...]:
    """The pieces that together are nearly all that was claimed, in order."""
    enough, covered, found = sum(amounts.values()) * PIECES_PERCENT, 0, list[str]()
    for piece, amount in sorted(amounts.items(), key=lambda each: (-each[1], each[0])):
        if covered * 100 >= enough:
            break
        found.append(piece)
        covered += amount
    return tuple(sorted(found))


def _count(seen: Table[Seen], mixes: Table[Mix], pool: str, kind: MixKind, times: int) -> None:
    key = f"{pool}/{kind.cpu_milli}/{kind.gpu_milli}/{kind.gpus}/{'|'.join(kind.models)}"
    key += f"/{kind.gpu_resource}" if kind.gpu_resource else ""
    mix, row = mixes.get(pool) or Mix(pool), seen.get(key)
    kinds = mix.kinds + (row is None)
    if row is None and mix.kinds >= KINDS_MAX:
        kinds -= _drop_rarest(seen, pool)
    seen.put(key, Seen(key, pool, kind, times + (row.count if row else 0)))
    mixes.put(pool, replace(mix, arrivals=mix.arrivals + times, kinds=kinds))


def _drop_rarest(seen: Table[Seen], pool: str) -> int:
    rare = sorted((row.count, row.key) for row in seen.values() if row.pool == pool)[: KINDS_MAX // PART_DROPPED]
    for _, key in rare:
        seen.drop(key)
    return len(rare)


def _settle(seen: Table[Seen], mixes: Table[Mix], nodes: Table[Node], mix: Mix) -> None:
    """The mix as it is now is what decisions go by from here on; old arrivals count half when there are many."""
    rows = sorted((row for row in seen.values() if row.pool == mix.pool), key=lambda row: row.key)
    there = [node for node in nodes.values() if node.pool == mix.pool and not node.gone]
    counts = {row.kind: row.count for row in rows}
    per_gpu, models, resources = cpu_per_gpu(there), models_of(there), other_resources(there)
    known = tuple(weights(counts, mix.arrivals, per_gpu, models, resources).items())
    arrivals, kinds = mix.arrivals, mix.kinds
    if arrivals >= ARRIVALS_MAX:
        arrivals //= 2
        for row in rows:
            if row.count > 1:
                seen.put(row.key, Seen(row.key, row.pool, row.kind, row.count // 2))
            else:
                seen.drop(row.key)
                kinds -= 1
    largest = max((node.cpu_milli for node in there), default=0)
    settled = replace(
        mix,
        arrivals=arrivals,
        kinds=kinds,
        settle_at=settle_at(arrivals),
        settled=mix.settled + 1,
        known=known,
        largest_cpu_milli=largest,
        prices=_carried_over(mix, known),
    )
    mixes.put(mix.pool, settled)


def settle_at(arrivals: int) -> int:
    """After how many arrivals the mix settles next; that is also when it is priced anew."""
    return next((at for at in SETTLED_AT if at > arrivals), ARRIVALS_MAX)


def _carried_over(mix: Mix, known: WeightedKinds) -> tuple[int, ...]:
    if not mix.prices:
        return ()
    had = {kind: price for (kind, _), price in zip(mix.known, mix.prices, strict=True)}
    return tuple(had.get(kind, in_full(kind)) for kind, _ in known)


def in_full(kind: MixKind) -> int:
    """Value of the GPUs that a pod of the kind holds, in millionths of one."""
    return kind.gpus * kind.gpu_milli * 1000


def weights(
    counts: Mapping[MixKind, int], arrivals: int, per_gpu: int, models: Sequence[str], resources: Sequence[str] = ()
) -> dict[MixKind, int]:
    """
    Weight of each kind, in the kinds' order: observed counts, and presumed ones until these have faded.

    Args: thousandths of a CPU `per_gpu`, the GPU `models`, and the `resources` of GPUs beside those that jobs get which
    name none, of the pool's nodes.
    """
    mixed = Counter({kind: count * WEIGHT for kind, count in counts.items()})
    for kind, weight in presumed(per_gpu, max(0, FADES_OVER - arrivals)):
        # Of a vendor whose GPUs nobody has asked for yet the same is presumed as of the pool's own.
        for resource in ("", *resources):
            mixed[replace(kind, gpu_resource=resource) if resource and kind.gpus else kind] += weight
    for kind, weight in presumed_bound(per_gpu, models, max(0, BOUND_FADES_OVER - arrivals)):
        mixed[kind] += weight
    return {kind: weight for kind, weight in sorted(mixed.items()) if weight}


def presumed(per_gpu: int, left: int = FADES_OVER) -> Iterator[tuple[MixKind, int]]:
    """Presumed demand in pools with so much CPU per GPU; `left` of `FADES_OVER` of its weight."""
    for gpus, milli, cpu_percent, of_hundred in PRESUMED:
        weight = PRIOR_WEIGHT * of_hundred * left // (100 * FADES_OVER)
        yield MixKind(per_gpu * cpu_percent // 100, milli, gpus), weight


def presumed_bound(per_gpu: int, models: Sequence[str], left: int = BOUND_FADES_OVER) -> Iterator[tuple[MixKind, int]]:
    """Jobs that run on one of `models` only; `left` of `BOUND_FADES_OVER` of their weight."""
    weight = PRIOR_WEIGHT * BOUND_PERCENT * left // (100 * BOUND_FADES_OVER)
    for model in models[:BOUND_MODELS_MAX]:
        for milli, cpu_percent, of_hundred in PRESUMED_BOUND:
            kind = MixKind(per_gpu * cpu_percent // 100, milli, 1, (model,))
            yield kind, weight * of_hundred // (100 * len(models))


def other_resources(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Resources of GPUs that a pod gets only where it names them, or a model, in the order of their names."""
    return tuple(sorted({node.gpu_resource or GPU_RESOURCE for node in nodes if node.gpus and not node.gpu_default}))


def models_of(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The GPU models of these nodes, in the order of their names."""
    return tuple(sorted({node.gpu_model for node in nodes if node.gpus and node.gpu_model}))


def cpu_per_gpu(nodes: Iterable[Node]) -> int:
    """Thousandths of a CPU per GPU, of those nodes that have GPUs."""
    with_gpus = [node for node in nodes if node.gpus]
    gpus = sum(node.gpus for node in with_gpus)
    return sum(node.cpu_milli for node in with_gpus) // gpus if gpus else USUAL_CPU_PER_GPU
