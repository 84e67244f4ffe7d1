"""A server of external metrics that says what a test has set, behind the API server's aggregation."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.kubernetes.api import Json
from tests.kubernetes.control_plane import ControlPlane, wait_until

NAMESPACE, GROUP, VERSION = "metrics", "external.metrics.k8s.io", "v1beta1"
METRIC = "wanted-replicas"


class PlayedMetrics:
    """`wanted` is the value of the one metric; autoscalers with an average of 1 want so many replicas."""

    def __init__(self) -> None:
        self.wanted = 1

    def answer(self, path: str) -> Json:
        """Discovery of the group, or the metric's value now."""
        if path.startswith(f"/apis/{GROUP}/{VERSION}/namespaces/"):
            # No time of ours: autoscalers show it, and ask for no certain age.
            value: Json = {"metricName": METRIC, "metricLabels": {}, "timestamp": "2026-01-01T00:00:00Z"}
            items = [value | {"value": str(self.wanted)}]
            return {
                "kind": "ExternalMetricValueList",
                "apiVersion": f"{GROUP}/{VERSION}",
                "metadata": {},
                "items": items,
            }
        verbs = {"name": METRIC, "singularName": "", "namespaced": True, "kind": "ExternalMetricValueList"}
        resources = [verbs | {"verbs": ["get"]}]
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{GROUP}/{VERSION}",
            "resources": resources,
        }


@contextmanager
def played_metrics(plane: ControlPlane) -> Iterator[PlayedMetrics]:
    """The server at work, and its API served by the API server."""
    metrics = PlayedMetrics()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = json.dumps(metrics.answer(self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made = plane.directory / "certificates"
    tls.load_cert_chain(made / "serving.crt", made / "serving.key")
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        plane.add_namespace(NAMESPACE)
        _register(plane, server.server_address[1])
        yield metrics
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _register(plane: ControlPlane, port: int) -> None:
    """An APIService whose Service is a name that leads to this machine."""
    service: Json = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
    meta = {"name": "played", "namespace": NAMESPACE}
    plane.api().create({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": service})
    spec: Json = {"group": GROUP, "version": VERSION, "groupPriorityMinimum": 100, "versionPriority": 100}
    spec |= {"insecureSkipTLSVerify": True, "service": {"name": "played", "namespace": NAMESPACE, "port": port}}
    api = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService"}
    plane.api().call(
        "POST",
        "/apis/apiregistration.k8s.io/v1/apiservices",
        {**api, "metadata": {"name": f"{VERSION}.{GROUP}"}, "spec": spec},
    )

    def is_served() -> bool:
        found = plane.api().get(f"/apis/apiregistration.k8s.io/v1/apiservices/{VERSION}.{GROUP}")
        conditions = found.get("status", {}).get("conditions", ())
        return any(one["type"] == "Available" and one["status"] == "True" for one in conditions)

    wait_until(is_served, f"{GROUP} is served")
