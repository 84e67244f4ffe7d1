"""
What the Helm chart takes from the declared services: `make schemas` writes it, `make check` compares it.

One file of data, from which the chart's templates make accounts, roles and their bindings, the flow at the API server
and the allow-list of those that call it.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from tessera_schemas.cluster.cluster_roles import ClusterRole
from tessera_schemas.shard.services import SPECS, ServiceSpec

FILE = Path(__file__).parent / "helm" / "tessera" / "files" / "services.yaml"
MADE = "# Made by `make schemas` from schemas/tessera_schemas/shard/services.py; edit that.\n"
PREFIX = "tessera-"
"""What roles are called by; the chart puts the release's own name there."""


def service(spec: ServiceSpec) -> dict[str, Any]:
    """The roles of a service, by their short names."""
    options = {value: _short(role) for value, role in spec.tenant_options.items()}
    return {
        "clusterRoles": [_short(role) for role in spec.cluster_roles],
        "tenantRole": _short(spec.tenant_role) if spec.tenant_role else "",
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
    data = {"services": {spec.name: service(spec) for spec in SPECS}, "roles": roles, "options": options}
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
