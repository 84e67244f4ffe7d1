"""The arguments of each part of the control plane: what a throw-away cluster on the loopback needs, and no more."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.kubernetes.certificates import Certificates

STAGES = Path(__file__).with_name("stages.yaml")
NODE_LABEL = "type=kwok"
WORKLOADS = ("GenericWorkload", "GangScheduling", "TopologyAwareWorkloadScheduling", "WorkloadAwarePreemption")
WORKLOADS_OF_JOBS = (*WORKLOADS, "WorkloadWithJob")
"""Kubernetes' own gangs; and those that the Job controller makes."""
WORKLOADS_WITH_CLAIMS = (*WORKLOADS, "DRAWorkloadResourceClaims")
"""Kubernetes' own gangs with claims on devices of their own."""
WORKLOAD_API = "scheduling.k8s.io/v1alpha2=true"
# What a cluster does with jobs, pods and nodes; volumes, clouds and certificates are nobody's here.
CONTROLLERS = (
    "job-controller,cronjob-controller,deployment-controller,replicaset-controller,statefulset-controller,"
    "daemonset-controller,disruption-controller,garbage-collector-controller,namespace-controller,"
    "node-lifecycle-controller,pod-garbage-collector-controller,taint-eviction-controller,resourcequota-controller,"
    "serviceaccount-controller,root-ca-certificate-publisher-controller,ttl-after-finished-controller,"
    "endpointslice-controller,clusterrole-aggregation-controller,persistentvolume-binder-controller,"
    "resourceclaim-controller,podgroup-protection-controller"
)


def etcd(data: Path, clients: str, peers: str) -> list[str]:
    return [
        f"--data-dir={data}",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--unsafe-no-fsync",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=5m",
        "--log-level=warn",
    ]


def api_server(
    address: str, port: int, etcd_url: str, tokens: Path, made: Certificates, gates: Sequence[str] = ()
) -> list[str]:
    return [
        *_gates(gates),
        *([f"--runtime-config={WORKLOAD_API}"] if gates else []),
        f"--etcd-servers={etcd_url}",
        f"--bind-address={address}",
        f"--advertise-address={address}",
        f"--secure-port={port}",
        "--endpoint-reconciler-type=none",  # no pod could reach a loopback address
        "--service-cluster-ip-range=10.0.0.0/24",
        f"--tls-cert-file={made.serving}",
        f"--tls-private-key-file={made.serving_key}",
        f"--token-auth-file={tokens}",
        f"--client-ca-file={made.ca}",
        "--authorization-mode=Node,RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={made.tokens}",
        f"--service-account-signing-key-file={made.tokens_key}",
        "--profiling=false",
        # As whom it speaks to the servers of further APIs, and by what these know on whose behalf.
        f"--proxy-client-cert-file={made.serving}",
        f"--proxy-client-key-file={made.serving_key}",
        f"--requestheader-client-ca-file={made.ca}",
        "--requestheader-allowed-names=kube-apiserver",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
    ]


def controller_manager(
    kubeconfig: Path, made: Certificates, silence_seconds: int, gates: Sequence[str] = ()
) -> list[str]:
    return [
        *_gates(gates),
        f"--kubeconfig={kubeconfig}",
        f"--controllers={CONTROLLERS}",
        "--leader-elect=false",
        "--secure-port=0",
        f"--root-ca-file={made.ca}",
        f"--service-account-private-key-file={made.tokens_key}",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        f"--node-monitor-period={max(1, silence_seconds // 10)}s",
        f"--node-monitor-grace-period={silence_seconds}s",
    ]


def kwok(kubeconfig: Path, lease_seconds: int) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--config={STAGES}",
        f"--manage-nodes-with-label-selector={NODE_LABEL}",
        f"--node-lease-duration-seconds={lease_seconds}",
        "-v=WARN",  # else each renewed lease is a line
    ]


def kube_scheduler(kubeconfig: Path, config: Path, gates: Sequence[str] = ()) -> list[str]:
    """Its default of 50 calls per second would be all that a comparison with it measures."""
    client = {"kubeconfig": str(kubeconfig), "qps": 5000, "burst": 5000}
    body = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": client,
    }
    config.write_text(yaml.safe_dump(body))
    return [*_gates(gates), f"--config={config}", "--secure-port=0"]


def _gates(names: Sequence[str]) -> list[str]:
    return [f"--feature-gates={','.join(f'{name}=true' for name in names)}"] if names else []
