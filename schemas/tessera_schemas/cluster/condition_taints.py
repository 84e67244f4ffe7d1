"""
Taints that tell a passing condition of a node, by key: controllers put them on and take them off by themselves.

They keep new pods away while they stand. No conclusion about what the node is follows from them.
"""

DOMAINS = (
    "node.kubernetes.io",
    "node.cloudprovider.kubernetes.io",
    "readiness.k8s.io",
    "startup-taint.cluster-autoscaler.kubernetes.io",
    "status-taint.cluster-autoscaler.kubernetes.io",
    "karpenter.sh",
)
KEYS = frozenset(["ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler"])
ENDS = ("not-ready", "unready", "uninitialized", "unreachable", "-pressure")
"""As of agents that a node starts with: `node.cilium.io/agent-not-ready`, `ebs.csi.aws.com/agent-not-ready`."""


def tells_condition(key: str) -> bool:
    """Whether a taint of this key tells a passing condition."""
    domain, slash, _ = key.partition("/")
    return key in KEYS or key.endswith(ENDS) or (bool(slash) and domain in DOMAINS)
