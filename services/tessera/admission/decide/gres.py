"""Generic resources of submitted jobs in Slurm's words, made claims on devices by the configuration. Pure."""

from collections.abc import Iterator

from tessera.domain.queues import QueueTree
from tessera_schemas.cluster.device_claims import COUNT_MAX, DeviceChoice, DeviceClaim, DeviceRequest, GresClass
from tessera_schemas.job import JobSpec, Role
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.reading import refusal

GPU = "gpu"
CLAIM = "gres"
"""The name of the claim that a pod has for all of them."""


def fill_gres(spec: JobSpec, tree: QueueTree | None) -> tuple[JobSpec, tuple[str, ...]]:
    """The spec with a claim for the generic resources that the configuration has, and what was decided, in words."""
    if not any(role.resources.gres for role in spec.roles):
        return spec, ()
    known, notes = _known(tree), dict[str, None]()
    roles = tuple(_filled(role, known, notes) for role in spec.roles)
    return spec.model_copy(update={"roles": roles}), tuple(notes)


def unknown_gres(spec: JobSpec, tree: QueueTree) -> Iterator[Reason]:
    """A refusal for each generic resource that is left: the configuration has none, or not so many for one request."""
    known = _known(tree)
    for index, role in enumerate(spec.roles):
        for name, count in role.resources.gres.items():
            there = f"the configuration has no such generic resource; there are: {', '.join(sorted(known)) or 'none'}"
            why = f"a request is of at most {COUNT_MAX}" if name in known else there
            detail = f"{name}:{count}: {why}"
            yield refusal(Code.INVALID_FIELD, f"roles[{index}].resources.gres", detail[:1024])


def _known(tree: QueueTree | None) -> dict[str, GresClass]:
    return {} if tree is None else {each.name: each for each in tree.gres}


def _filled(role: Role, known: dict[str, GresClass], notes: dict[str, None]) -> Role:
    asked = role.resources
    found = {name: n for name, n in asked.gres.items() if name in known and n <= COUNT_MAX}
    said_as_gpus = bool(asked.gpus or asked.gpu_milli or asked.mig_profile)
    left = {
        name: n
        for name, n in asked.gres.items()
        if name not in found and (name in known or not (said_as_gpus and _is_gpu(name)))
    }
    changes: dict[str, object] = {"gres": left}
    if found:
        requests = (_request(name, count, known[name], at) for at, (name, count) in enumerate(sorted(found.items())))
        changes["claims"] = (*asked.claims, DeviceClaim(name=CLAIM, requests=tuple(requests)))
    for name, count in found.items():
        notes[f"{role.name}: {name}:{count} is {count} of class {known[name].device_class}, by gres"] = None
    if not any(map(_is_gpu, found)):
        return role.model_copy(update={"resources": asked.model_copy(update=changes)})
    changes |= {"gpus": 0, "gpu_milli": 0, "mig_profile": "", "gpu_parts": 1, "gpu_memory_bytes": 0}
    return role.model_copy(update={"resources": asked.model_copy(update=changes), "gpu_models": ()})


def _is_gpu(name: str) -> bool:
    return name.partition(":")[0] == GPU


def _request(name: str, count: int, of: GresClass, at: int) -> DeviceRequest:
    choice = DeviceChoice(device_class=of.device_class, selectors=of.selectors, count=count)
    return DeviceRequest(name=f"{name.partition(':')[0].replace('_', '-').strip('-')[:50]}-{at}", choices=(choice,))
