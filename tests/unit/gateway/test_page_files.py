"""The page's files: for everybody, with nothing from elsewhere, and known again when they are asked for again."""

import re

import aiohttp
import pytest

from tessera.domain.devices.free_slots import Stranded, Unclaimed
from tessera.gateway.page import PageFiles
from tests.unit.gateway.gateway_world import World


async def test_the_page_needs_no_token_but_the_name_of_this_server(world: World) -> None:
    async with world.gateway(), aiohttp.ClientSession(f"http://127.0.0.1:{world.port}") as http:
        async with http.get("/ui") as answer:
            assert (answer.status, answer.content_type) == (200, "text/html")
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            tag = answer.headers["ETag"]
        async with http.get("/ui", headers={"If-None-Match": tag}) as again:
            assert again.status == 304
        async with http.get("/ui", headers={"Host": "evil.example"}) as rebound:
            assert rebound.status == 403
        for path in ("/ui/none.js", "/ui/..%2Fmain.py", "/ui/__init__.py"):
            async with http.get(path) as missing:
                assert missing.status == 404
        async with http.get("/v1/line") as line:
            assert line.status == 401


@pytest.mark.parametrize("name", sorted(PageFiles().names))
def test_no_file_loads_anything_from_elsewhere_or_makes_markup_of_text(name: str) -> None:
    text = PageFiles().body(name).decode()
    assert not re.search(r"https?://|//[a-z]+\.[a-z]|innerHTML|insertAdjacentHTML|document\.write|\beval\(", text)
    assert not re.search(r"\son[a-z]+=|style=\"|<script>", text)


@pytest.mark.parametrize("cause", [*Stranded, *Unclaimed])
def test_the_page_has_a_sentence_for_every_cause_of_idleness(cause: str) -> None:
    assert re.search(rf"^  {cause}: ", PageFiles().body("idle.js").decode(), re.MULTILINE)
