"""
The manifests that follow from the declared services: `make schemas` writes them, `make check` compares them.

Accounts, roles and their bindings, the flow at the API server, and the Deployments; what is the same for all of these
is in `kubernetes/base/process.yaml`.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from textwrap import fill

from tessera_schemas.cluster_roles import ClusterRole, Rule
from tessera_schemas.services import SPECS, ServiceSpec

FOLDER = Path(__file__).parent / "kubernetes" / "base"
NAMESPACE = "tessera-system"
MADE = "# Made by `make schemas` from schemas/tessera_schemas/services.py; edit that.\n"
RBAC = "rbac.authorization.k8s.io"
ON_CLUSTER = [spec for spec in SPECS if spec.uses_cluster]


def account(spec: ServiceSpec) -> str:
    """The identity of a service; only those that call the cluster get a token of it."""
    return f"""---
apiVersion: v1
kind: ServiceAccount
metadata: {{name: tessera-{spec.name}}}
automountServiceAccountToken: {str(spec.uses_cluster).lower()}
"""


def deployment(spec: ServiceSpec) -> str:
    """What differs between services; one on which no pod's start waits takes less of a node that is short of CPU."""
    labels = f"{{app.kubernetes.io/name: tessera, app.kubernetes.io/component: {spec.name}}}"
    files = "[{key: identity.json, path: identity.json}]"
    return f"""---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {spec.name}}}
spec:
  replicas: 2
  selector: {{matchLabels: {labels}}}
  template:
    metadata: {{labels: {labels}}}
    spec:
      serviceAccountName: tessera-{spec.name}
      containers:
        - name: service
          image: tessera
          args: [run, {spec.name}]
          resources: {{requests: {{cpu: {"100m" if spec.yields else "250m"}}}}}
      volumes: [{{name: credentials, secret: {{secretName: tessera-{spec.name}, items: {files}}}}}]
"""


def role(made: ClusterRole) -> str:
    """A role and what it means."""
    rules = "\n".join(f"  - {rule(one)}" for one in made.rules)
    return f"""---
{comment(made.means)}
apiVersion: {RBAC}/v1
kind: ClusterRole
metadata: {{name: {made.name}}}
rules:
{rules}
"""


def rule(one: Rule) -> str:
    """One rule in one line."""
    groups = ", ".join(group or '""' for group in one.groups)
    return f"{{apiGroups: [{groups}], resources: [{', '.join(one.resources)}], verbs: [{', '.join(one.verbs)}]}}"


def binding(made: ClusterRole) -> str:
    """The services to which a role is given in the whole cluster."""
    subjects = "\n".join(
        f"  - {{kind: ServiceAccount, name: tessera-{spec.name}, namespace: {NAMESPACE}}}"
        for spec in ON_CLUSTER
        if made in spec.cluster_roles
    )
    return f"""---
apiVersion: {RBAC}/v1
kind: ClusterRoleBinding
metadata: {{name: {made.name}s}}
roleRef: {{apiGroup: {RBAC}, kind: ClusterRole, name: {made.name}}}
subjects:
{subjects}
"""


def flow() -> str:
    """The standing of our calls among everybody's."""
    subjects = "\n".join(
        f"        - {{kind: ServiceAccount, serviceAccount: {{name: tessera-{spec.name}, namespace: {NAMESPACE}}}}}"
        for spec in ON_CLUSTER
    )
    return f"""apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {{name: tessera}}
spec:
  priorityLevelConfiguration: {{name: workload-high}}
  matchingPrecedence: 800
  distinguisherMethod: {{type: ByUser}}
  rules:
    - subjects:
{subjects}
      resourceRules:
        - {{apiGroups: ["*"], resources: ["*"], verbs: ["*"], namespaces: ["*"], clusterScope: true}}
"""


def comment(text: str) -> str:
    """A text as lines of comment."""
    return fill(text, 118, initial_indent="# ", subsequent_indent="# ")


def files() -> dict[str, str]:
    """The text of each manifest, by its name."""
    wide = list(dict.fromkeys(made for spec in ON_CLUSTER for made in spec.cluster_roles))
    of_tenants = [spec.tenant_role for spec in ON_CLUSTER if spec.tenant_role]
    return {
        "accounts.yaml": _joined(
            "One identity per service. Only those that act on the cluster, or look at it, get a token of it.",
            map(account, SPECS),
        ),
        "services.yaml": _joined(
            "What differs between the services; process.yaml adds what is the same. Two of each: the work is shared, "
            "or one leads.",
            map(deployment, SPECS),
        ),
        "roles.yaml": _joined(
            "Cluster-wide there is only reading. Writing needs a RoleBinding in the tenant's namespace: see ../tenant.",
            [*map(role, [*wide, *of_tenants]), *map(binding, wide)],
        ),
        "flow.yaml": _joined(
            "What binds and frees has the standing at the API server that kube-scheduler has by default. Among the "
            "service accounts of everybody (workload-low) its calls wait behind theirs: binds took 0.4 s each where "
            "they were many.",
            [flow()],
        ),
    }


def _joined(means: str, documents: Iterable[str]) -> str:
    return MADE + comment(means) + "\n" + "".join(documents)


def main(arguments: list[str]) -> int:
    """Write the manifests, or with `--check` name those that are not current."""
    check, stale = "--check" in arguments, []
    for name, text in files().items():
        path = FOLDER / name
        if check and path.read_text() != text:
            stale.append(name)
        elif not check:
            path.write_text(text)
    for name in stale:
        print(f"stale: {FOLDER.name}/{name}; run `make schemas`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
