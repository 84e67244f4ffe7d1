"""A small HTTP server that answers as a gateway what it is told to."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tessera.client.connect.api import Api
from tessera.client.connect.contexts import ApiLogin

Json = dict[str, Any]


def job(name: str, phase: str = "running", ts: int = 1) -> Json:
    known = {"job_id": name.ljust(20, "a"), "tenant": "lab", "queue": "q", "name": name, "key": name, "phase": phase}
    return known | {"priority": 0, "attempt": 1, "pods": 1, "gpu_milli": 1000, "submitted_ts": ts}


class Gateway:
    """Answers by path; `asked` are the requests with their tokens, `sent` the bodies."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {}
        self.asked: list[tuple[str, dict[str, list[str]], str]] = []
        self.sent: list[bytes] = []
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = parse_qs(parts.query)
                gateway.asked.append((parts.path, query, self.headers.get("Authorization", "")))
                status, body = gateway.answers[parts.path]
                body = body(query) if callable(body) else body
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", body)
                    body = {}
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_POST(self) -> None:
                gateway.sent.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.do_GET()

            def do_PUT(self) -> None:
                self.do_POST()

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.api = Api(ApiLogin(self.url, "tessera_a_b"))

    def close(self) -> None:
        """Listen no more."""
        self.server.shutdown()
        self.server.server_close()
