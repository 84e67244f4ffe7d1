"""
Names that would give a job rights on its node, in any spelling.

Nothing here makes the contract safer: a field that is not in it is refused anyway. It makes the refusal say why, and
covers the two places where a client chooses the key itself: environment and annotations.
"""

import unicodedata
from collections.abc import Iterator
from typing import Any

from tessera_schemas.cluster.labels import SIMULATE_PREFIX

DANGEROUS = frozenset(
    {
        "hostpath",
        "hostnetwork",
        "hostpid",
        "hostipc",
        "hostusers",
        "hostport",
        "hostaliases",
        "privileged",
        "securitycontext",
        "podsecuritycontext",
        "capabilities",
        "procmount",
        "seccompprofile",
        "apparmorprofile",
        "selinuxoptions",
        "allowprivilegeescalation",
        "sysctls",
        "runasuser",
        "runasgroup",
        "nodename",
        "schedulername",
        "schedulinggates",
        "serviceaccount",
        "serviceaccountname",
        "automountserviceaccounttoken",
        "finalizers",
        "ownerreferences",
        "runtimeclassname",
        "priorityclassname",
        "shareprocessnamespace",
        "ephemeralcontainers",
        "volumedevices",
        "resourceclaims",
    }
)
BY_GRANT = {
    "hostnetwork": "host_network",
    "capabilities": "ipc_lock",
    "runtimeclassname": "runtime_class",
}
"""Of some there is a field of the template for tenants that are granted it."""
RESERVED_DOMAINS = ("tessera.io", "kubernetes.io", "k8s.io", "hami.io", "nvidia.com")
"""Keys below them steer Tessera, Kubernetes and its plug-ins; a job does not set them."""


def is_dangerous(name: str) -> bool:
    """`hostPath`, `host_path`, `HOST-PATH`, also in full-width letters."""
    return _folded(name) in DANGEROUS


def with_grant(name: str) -> str:
    """The field that a granted tenant may use in place of this dangerous one; "" if there is none."""
    field = BY_GRANT.get(_folded(name))
    return f"with a grant: {field} in the role's template" if field else ""


def _folded(name: str) -> str:
    folded = unicodedata.normalize("NFKC", name).casefold()
    return "".join(letter for letter in folded if letter.isalnum())


def in_reserved_domain(key: str) -> bool:
    """
    Whether a label or annotation key lies in a domain that is not the client's.

    What tells the simulated cluster how to behave is the client's: no other cluster looks at it.
    """
    domain, slash, _ = key.partition("/")
    return (
        not key.startswith(SIMULATE_PREFIX)
        and bool(slash)
        and any(domain == reserved or domain.endswith(f".{reserved}") for reserved in RESERVED_DOMAINS)
    )


def dangerous_below(value: Any, path: str) -> Iterator[str]:
    """The paths of dangerous names anywhere inside `value`; without recursion, since the sender chose the depth."""
    open_values: list[tuple[Any, str]] = [(value, path)]
    while open_values:
        now, at = open_values.pop()
        if isinstance(now, dict):
            for name, inner in now.items():
                if is_dangerous(name):
                    yield f"{at}.{name}"
                open_values.append((inner, f"{at}.{name}"))
        elif isinstance(now, list):
            open_values += [(inner, f"{at}[{index}]") for index, inner in enumerate(now)]
