"""
Answers packed with gzip for clients that take it: JSON, and the files of the page. Streams go out as they are.

What is packed holds no secret beside what a stranger may choose: no cookie stands for a token here, so that no other
site can make a browser ask with one and learn from the lengths of answers.
"""

import asyncio
import gzip
from collections.abc import Mapping

from aiohttp import hdrs, web

from tessera.gateway.entrance.guard import Handler

PACKED_FROM_BYTES = 1024  # less fits into one packet anyway
ASIDE_FROM_BYTES = 64 * 1024
# From here on packing takes milliseconds, and is done beside the event loop.
LEVEL = 3
TYPES = frozenset({"application/json", "text/html", "text/css", "text/javascript"})


def takes_gzip(headers: Mapping[str, str]) -> bool:
    """Whether the client says that it takes gzip; `*` alone does not count."""
    for offer in headers.get(hdrs.ACCEPT_ENCODING, "").lower().split(","):
        coding, _, weight = offer.partition(";")
        if coding.strip() in ("gzip", "x-gzip"):
            return weight.replace(" ", "") not in ("q=0", "q=0.", "q=0.0", "q=0.00", "q=0.000")
    return False


def pack(body: bytes) -> bytes:
    """The same bytes for the same body."""
    return gzip.compress(body, LEVEL, mtime=0)


@web.middleware
async def compress_answers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Packs whole answers on their way out."""
    response = await handler(request)
    if not isinstance(response, web.Response) or response.prepared or response.content_type not in TYPES:
        return response
    body = response.body
    if not isinstance(body, bytes) or len(body) < PACKED_FROM_BYTES:
        return response
    response.headers[hdrs.VARY] = hdrs.ACCEPT_ENCODING
    if takes_gzip(request.headers):
        response.body = pack(body) if len(body) < ASIDE_FROM_BYTES else await asyncio.to_thread(pack, body)
        response.headers[hdrs.CONTENT_ENCODING] = "gzip"
    return response
