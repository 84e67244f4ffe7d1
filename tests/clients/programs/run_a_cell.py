"""
Start a kernel of a Jupyter server and run a cell in it, as a page does: over HTTP and a WebSocket.

Words: URL of the server, file of its token, file with the cell. What the cell printed is printed; 1 where it failed.
"""

import asyncio
import json
import sys
import uuid
from pathlib import Path

from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import websocket_connect


async def main(url: str, token: str, cell: str) -> int:
    headers = {"Authorization": f"token {token}"}
    made = await AsyncHTTPClient().fetch(HTTPRequest(f"{url}/api/kernels", "POST", headers, body="{}"))
    kernel, message = json.loads(made.body)["id"], uuid.uuid4().hex
    channels = f"{url.replace('http', 'ws', 1)}/api/kernels/{kernel}/channels?session_id={message}"
    socket = await websocket_connect(HTTPRequest(channels, headers=headers))
    header = {"msg_id": message, "msg_type": "execute_request", "username": "", "session": message, "version": "5.3"}
    asked = {"code": cell, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
    common = {"parent_header": {}, "metadata": {}, "channel": "shell", "buffers": []}
    await socket.write_message(json.dumps({"header": header, "content": asked} | common))
    while (said := await socket.read_message()) is not None:
        told = json.loads(said)
        if told["parent_header"].get("msg_id") != message:
            continue
        if told["msg_type"] == "stream":
            print(told["content"]["text"], end="")
        if told["msg_type"] == "execute_reply":
            return int(told["content"]["status"] != "ok")
    return 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], *(Path(name).read_text() for name in sys.argv[2:]))))
