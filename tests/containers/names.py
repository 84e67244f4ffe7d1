"""
The names of a cluster's pods, answered as its DNS would: a pod with a hostname and a subdomain has an address by both.

The control plane of these tests runs no DNS of its own, and pods that look for one another need one.
"""

import re
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.kubernetes.control_plane import ControlPlane

DOMAIN = "cluster.local"
NAME = re.compile(rf"([^.]+)\.([^.]+)\.([^.]+)\.svc\.{re.escape(DOMAIN)}", re.IGNORECASE)
HEADER_BYTES, ADDRESS_KIND = 12, 1
FOUND, NO_SUCH_NAME = 0x8580, 0x8583
Look = Callable[[str], str]


@contextmanager
def answered(plane: ControlPlane, address: str) -> Iterator[None]:
    """Names are answered at this address, port 53, for as long as the block lasts."""

    def look(name: str) -> str:
        """The address of a pod; "" for a name that no pod has."""
        matched = NAME.fullmatch(name)
        if matched is None:
            return ""
        host, subdomain, namespace = matched.groups()
        for pod in plane.api().items(f"/api/v1/namespaces/{namespace}/pods"):
            if (pod["spec"].get("hostname"), pod["spec"].get("subdomain")) == (host, subdomain):
                return str(pod["status"].get("podIP", ""))
        return ""

    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            asked, socket = self.request
            socket.sendto(reply(asked, look), self.client_address)

    with socketserver.ThreadingUDPServer((address, 53), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def reply(asked: bytes, look: Look) -> bytes:
    """Answer to a message with one question."""
    labels, at = list[str](), HEADER_BYTES
    while length := asked[at]:
        labels.append(asked[at + 1 : at + 1 + length].decode())
        at += 1 + length
    question = asked[HEADER_BYTES : at + 5]
    (kind,) = struct.unpack("!H", question[-4:-2])
    address = look(".".join(labels))
    has_answer = bool(address) and kind == ADDRESS_KIND
    flags = FOUND if address else NO_SUCH_NAME
    header = asked[:2] + struct.pack("!5H", flags, 1, int(has_answer), 0, 0)
    if not has_answer:
        return header + question
    data = bytes(map(int, address.split(".")))
    return header + question + struct.pack("!3HIH", 0xC000 | HEADER_BYTES, ADDRESS_KIND, 1, 1, len(data)) + data
