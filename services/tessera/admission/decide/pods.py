"""
Pod settings of a job, checked against the tenant's grants and the rules of every API server. Pure.

Without these checks, a pod that the API server refuses would be noticed only after the job had waited for room, and
again with every attempt. The contract itself cannot forbid such settings, since it reads jobs of older ledgers.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping

from tessera_schemas.cluster.device_vendors import known_gpu_resources
from tessera_schemas.cluster.devices import steers_devices
from tessera_schemas.cluster.node_terms import AffinityTerm
from tessera_schemas.job import JobSpec, Role, Template
from tessera_schemas.reasons import Code, Reason
from tessera_schemas.subjects import SUBMIT_BYTES_MAX
from tessera_schemas.text.reading import refusal
from tessera_schemas.work.dangerous import in_reserved_domain
from tessera_schemas.work.pod_template import NOTICE_DIRECTORY, EnvSource, PodGrants
from tessera_schemas.work.spec_changes import Program

PODS_BYTES_MAX = 256 * 1024**2
"""Of the templates of all pods of a job: an eighth of what etcd holds unless told otherwise."""
DOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
"""A DNS subdomain: names of objects, and what stands before the slash of a key."""
DEVICE_DOMAIN_CHARACTERS_MAX = 244
"""An API server counts the domain of a device with the 9 characters `requests.` before it."""


def not_granted(spec: JobSpec, grants: PodGrants) -> list[Reason]:
    """Every field that asks for something that the tenant is not granted."""
    paths = [
        (f"roles[{index}].{path}", grant)
        for index, role in enumerate(spec.roles)
        for path, grant, granted in _asked(role, grants)
        if not granted
    ]
    return [refusal(Code.NOT_GRANTED, path, f"pod_grants.{grant}") for path, grant in paths]


def _asked(role: Role, grants: PodGrants) -> Iterator[tuple[str, str, bool]]:
    """The fields that need a grant: path, the grant, whether it is given."""
    template = role.template
    yield from _asked_of_volumes(template, grants)
    yield from _asked_of_containers(template, grants)
    if template.ipc_lock:
        yield "template.ipc_lock", "ipc_lock", grants.ipc_lock
    if template.host_network:
        yield "template.host_network", "host_network", grants.host_network
    if template.runtime_class is not None:
        yield "template.runtime_class", "runtime_classes", template.runtime_class in grants.runtime_classes
    if role.resources.has_higher_limits:
        field = "cpu_limit_milli" if role.resources.cpu_limit_milli else "memory_limit_bytes"
        yield f"resources.{field}", "higher_limits", grants.higher_limits


def _asked_of_volumes(template: Template, grants: PodGrants) -> Iterator[tuple[str, str, bool]]:
    for index, volume in enumerate(template.volumes):
        if volume.kind == "memory":
            yield f"template.volumes[{index}].kind", "memory_volumes", grants.memory_volumes


def _asked_of_containers(template: Template, grants: PodGrants) -> Iterator[tuple[str, str, bool]]:
    if template.env_from:
        yield "template.env_from", "env_from", grants.env_from
    if template.init_containers:
        yield "template.init_containers", "init_containers", grants.init_containers
    for index, container in enumerate(template.init_containers):
        if container.env_from:
            yield f"template.init_containers[{index}].env_from", "env_from", grants.env_from
    if template.ports:
        yield "template.ports", "ports", grants.ports


def too_large_together(spec: JobSpec) -> list[Reason]:
    """Why Kubernetes should not store all pods of the job at its largest: each holds its whole template."""
    if sum(role.most for role in spec.roles) * SUBMIT_BYTES_MAX <= PODS_BYTES_MAX:
        return []
    size = sum(role.most * len(role.template.to_bytes()) for role in spec.roles)
    if size <= PODS_BYTES_MAX:
        return []
    numbers = {"bytes": size, "bytes_max": PODS_BYTES_MAX}
    why = "each pod holds its command and variables; put the script into the image or a volume"
    return [refusal(Code.TOO_LARGE, "roles", why, numbers)]


def malformed(spec: JobSpec) -> list[Reason]:
    """Settings that parse but that no API server or container runtime accepts."""
    found = list(_bad_keys("labels", spec.labels))
    for index, role in enumerate(spec.roles):
        found += [(f"roles[{index}].{path}", why) for path, why in _malformed_role(role, spec.checkpoint is not None)]
    return [refusal(Code.INVALID_FIELD, path, why) for path, why in found]


def _malformed_role(role: Role, has_notice: bool) -> Iterator[tuple[str, str]]:
    yield from _bad_mounts(role, has_notice)
    yield from _bad_keys("node_selector", role.node_selector)
    yield from _bad_keys("template.annotations", (key.lower() for key in role.template.annotations))
    yield from _bad_sources("template", role.template.env_from)
    for index, container in enumerate(role.template.init_containers):
        yield from _bad_sources(f"template.init_containers[{index}]", container.env_from)
    for index, toleration in enumerate(role.tolerations):
        yield from _bad_keys(f"tolerations[{index}].key", (toleration.key,))
    for at, terms in (("affinity", role.affinity), *_named_lists(role)):
        for index, term in enumerate(terms):
            yield from _bad_keys(f"{at}[{index}].key", (term.key,))
    yield from _bad_keys("resources.devices", role.resources.devices)
    for name in role.resources.devices:
        if len(name.partition("/")[0]) > DEVICE_DOMAIN_CHARACTERS_MAX:
            yield f"resources.devices.{name}", f"the domain has more than {DEVICE_DOMAIN_CHARACTERS_MAX} characters"


def _named_lists(role: Role) -> list[tuple[str, tuple[AffinityTerm, ...]]]:
    preferred = [(f"affinity_preferred[{at}].terms", each.terms) for at, each in enumerate(role.affinity_preferred)]
    return [*((f"affinity_any[{index}]", terms) for index, terms in enumerate(role.affinity_any)), *preferred]


def _bad_mounts(role: Role, has_notice: bool) -> Iterator[tuple[str, str]]:
    taken = {NOTICE_DIRECTORY: "the checkpoint notice"} if has_notice else {}
    for index, volume in enumerate(role.template.volumes):
        at, path = f"template.volumes[{index}]", "/" + posixpath.normpath(volume.mount_path).lstrip("/")
        if path == "/" or ".." in volume.mount_path.split("/"):
            yield f"{at}.mount_path", "nothing is mounted over the root; name a directory below it, without .."
        if ":" in path:
            yield f"{at}.mount_path", "a path with a colon is not mounted; leave it out"
        if path in taken:
            yield f"{at}.mount_path", f"{taken[path]} is mounted there, too; take another path"
        taken[path] = at
        if volume.name and not DOMAIN.fullmatch(volume.name):
            yield f"{at}.name", "no object can have this name: letters, digits and - between dots"


def _bad_sources(at: str, sources: Mapping[str, EnvSource]) -> Iterator[tuple[str, str]]:
    for name, source in sources.items():
        if source.key == "." or source.key.startswith(".."):
            yield f"{at}.env_from.{name}.key", "no secret or config map has a key . or one that begins with .."


def _bad_keys(field: str, keys: Iterable[str]) -> Iterator[tuple[str, str]]:
    """A key is a name, or a domain, a slash and a name; the contract looks at the domain's characters alone."""
    for key in keys:
        domain, slash, _ = key.partition("/")
        if slash and not DOMAIN.fullmatch(domain):
            yield f"{field}.{key}", f"{domain} is no domain: letters, digits and - between dots"


def not_the_clients(spec: JobSpec) -> list[Reason]:
    """Faults in fields that clients fill freely: keys in reserved domains, and values that no API server accepts."""
    paths = [f"labels.{key}" for key in spec.labels if in_reserved_domain(key)]
    for index, role in enumerate(spec.roles):
        at, template = f"roles[{index}].template", role.template
        paths += [f"{at}.annotations.{key}" for key in template.annotations if in_reserved_domain(key)]
        paths += [f"{at}.{path}.{name}" for path, name in _variables(template) if steers_devices(name)]
    return [refusal(Code.FORBIDDEN_FIELD, path) for path in paths] + malformed(spec) + _gpus_as_devices(spec)


def find_program_faults(programs: Mapping[str, Program]) -> list[Reason]:
    """Faults in what a service's replicas are to run: variables by which the device plugin picks GPUs."""
    names = [(role, name) for role, program in programs.items() for name in program.env if steers_devices(name)]
    return [refusal(Code.FORBIDDEN_FIELD, f"programs.{role}.env.{name}") for role, name in names]


def _gpus_as_devices(spec: JobSpec) -> list[Reason]:
    """GPUs asked for as if they were further devices, as which no node has them."""
    found = known_gpu_resources()
    asked = [(at, *each) for at, role in enumerate(spec.roles) for each in sorted(role.resources.devices.items())]
    return [
        refusal(Code.INVALID_FIELD, f"roles[{at}].resources.devices.{name}", f"say gpus: {count}, gpu_resource: {name}")
        for at, name, count in asked
        if name in found
    ]


def _variables(template: Template) -> Iterator[tuple[str, str]]:
    """The names of all variables that its containers are given, each after the field that has it."""
    yield from (("env", name) for name in template.env)
    yield from (("env_from", name) for name in template.env_from)
    for index, container in enumerate(template.init_containers):
        yield from ((f"init_containers[{index}].env", name) for name in container.env)
        yield from ((f"init_containers[{index}].env_from", name) for name in container.env_from)
