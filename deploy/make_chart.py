"""
What the Helm chart takes from the declared services: `make schemas` writes it, `make check` compares it.

One file of data, from which the chart's templates make the processes of a layout, their accounts, roles and
bindings, the flow at the API server and the allow-list of those that call it.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from tessera_schemas.cluster.cluster_roles import ClusterRole
from tessera_schemas.shard.services import BY_NAME, COMPACT, LAYOUTS, SEPARATE, SPECS

FILE = Path(__file__).parent / "helm" / "tessera" / "files" / "services.yaml"
MADE = "# Made by `make schemas` from schemas/tessera_schemas/shard/services.py; edit that.\n"
PREFIX = "tessera-"
"""What roles are called by; the chart puts the release's own name there."""


def process(services: tuple[str, ...]) -> dict[str, Any]:
    """Services of a process, and its roles by their short names: all that one of them has."""
    specs = [BY_NAME[name] for name in services]
    tenant_roles = {_short(spec.tenant_role) for spec in specs if spec.tenant_role}
    if len(tenant_roles) > 1:
        raise ValueError(f"{'+'.join(services)}: several roles in a tenant's namespace; the chart binds one a process")
    options = {value: _short(role) for spec in specs for value, role in spec.tenant_options.items()}
    return {
        "services": list(services),
        "clusterRoles": list(dict.fromkeys(_short(role) for spec in specs for role in spec.cluster_roles)),
        "tenantRole": next(iter(tenant_roles), ""),
    } | ({"tenantOptions": options} if options else {})


def role(made: ClusterRole) -> dict[str, Any]:
    """A role as Kubernetes writes it."""
    rules = [
        {"apiGroups": list(one.groups), "resources": list(one.resources), "verbs": list(one.verbs)}
        for one in made.rules
    ]
    return {"means": made.means, "rules": rules}


def text() -> str:
    """The whole file."""
    of_services = [*(one for spec in SPECS for one in spec.cluster_roles), *(spec.tenant_role for spec in SPECS)]
    roles = {_short(one): role(one) for one in of_services if one}
    options = {_short(one): role(one) for spec in SPECS for one in spec.tenant_options.values()}
    layouts = {name: {one: process(of) for one, of in LAYOUTS[name].items()} for name in (SEPARATE, COMPACT)}
    data = {"layouts": layouts, "roles": roles, "options": options}
    return MADE + yaml.safe_dump(data, sort_keys=False, width=120, default_flow_style=None)


def _short(role: ClusterRole) -> str:
    return role.name.removeprefix(PREFIX)


def main(arguments: list[str]) -> int:
    """Write the file, or with `--check` say whether it is current."""
    if "--check" not in arguments:
        FILE.write_text(text())
    elif FILE.read_text() != text():
        print(f"stale: {FILE.name}; run `make schemas`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
