"""
A played head of every Ray cluster, as KubeRay sees it over HTTP: the dashboard's jobs and Serve applications, and the
health of Serve's proxies. Pods here run nothing, and their addresses lead nowhere: KubeRay gets this as its HTTP proxy.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

SERVE, JOBS = "/api/serve/applications/", "/api/jobs/"


@dataclass(slots=True)
class Dashboard:
    """`job` is the status of every program that was submitted; `served` are the hosts that were given applications."""

    url: str
    job: str = "RUNNING"
    served: set[str] = field(default_factory=set)

    def answer(self, method: str, host: str, path: str) -> Any:
        """What the head at this host says."""
        if path.startswith(JOBS):
            return {"status": self.job, "submission_id": path.removeprefix(JOBS)}
        if path == SERVE and method == "PUT":
            self.served.add(host)
        if path == SERVE:
            application = {"name": "app", "status": "RUNNING", "deployments": {}}
            return {"applications": {"app": application} if host in self.served else {}}
        return "success"


@contextmanager
def ray_dashboard() -> Iterator[Dashboard]:
    """Served on a port of this machine until the body ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.dumps(dashboard.answer(self.command, asked.netloc, asked.path)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_PUT(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        dashboard = Dashboard(f"http://127.0.0.1:{server.server_address[1]}")
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield dashboard
        finally:
            server.shutdown()
