"""
The Service and the Ingress by which browsers reach a session that asks for them, where the configuration has a form of
its address. Pure.

The Service is that of the session's run, made before its pod and deleted once the run is released, as for launchers
with names. It owns the Ingress, so that Kubernetes takes that away, and whoever makes it needs no right to read, change
or delete one.
"""

from tessera.binder.launchers.naming import service_of
from tessera.domain.entities import Job
from tessera_schemas.base import Json
from tessera_schemas.job import JobSpec
from tessera_schemas.work.measured_use import SessionIngress

NAME, PORT = "session", 80


def session_service(job: Job, run_id: str, allocated_n: int, spec: JobSpec) -> Json:
    """
    The run's Service as proxies take it, with an address of its own, for the first port of the session's container.

    A session that warns of its idleness is not ready, and is reached all the same.
    """
    headless = service_of(job, run_id, allocated_n)
    reached = {name: value for name, value in headless["spec"].items() if name != "clusterIP"}
    target = spec.roles[0].template.ports[0].port
    return headless | {"spec": reached | {"ports": [{"name": NAME, "port": PORT, "targetPort": target}]}}


def session_ingress(job: Job, service: Json, uid: str, form: SessionIngress) -> Json:
    """The Ingress of the name and labels of the run's Service, which is of this UID and owns it."""
    meta, (host, path) = service["metadata"], form.place(job.job_id, job.tenant)
    owner = {"apiVersion": service["apiVersion"], "kind": service["kind"], "name": meta["name"], "uid": uid}
    backend = {"service": {"name": meta["name"], "port": {"number": PORT}}}
    paths = [{"path": path.rstrip("/") or "/", "pathType": "Prefix", "backend": backend}]
    secret = {"secretName": form.tls_secret} if form.tls_secret else {}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": meta | {"annotations": form.annotations | meta["annotations"], "ownerReferences": [owner]},
        "spec": {
            **({"ingressClassName": form.ingress_class} if form.ingress_class else {}),
            **({"tls": [{"hosts": [host]} | secret]} if form.tls else {}),
            "rules": [{"host": host, "http": {"paths": paths}}],
        },
    }


def address_variables(job: Job, form: SessionIngress | None) -> dict[str, str]:
    """Variables of a session's pod by which its program knows below which path it is to serve."""
    if form is None or job.session is None or not job.session.ingress:
        return {}
    return {
        "TESSERA_SESSION_URL": form.url(job.job_id, job.tenant),
        "TESSERA_SESSION_PATH": form.place(job.job_id, job.tenant)[1],
    }
