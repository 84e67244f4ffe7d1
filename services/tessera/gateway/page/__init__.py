"""
The page at /ui: files of this folder, read once at the start, for everybody.

They hold no data: what the page shows it asks of the API, with a token and as its tenant. Nothing is loaded from
elsewhere and no script stands in the markup, as the content security policy demands of browsers.
"""

import hashlib
from importlib.resources import files

import orjson
from aiohttp import web

from tessera.gateway.entrance.problems import refused
from tessera_schemas.cluster.health import MEANINGS
from tessera_schemas.reasons import SENTENCES, Code

PAGE = ("page", "page_file")
# Names of the routes that need no token.
PATH = "/ui"
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


def _sentences() -> bytes:
    # The module of what each code says to people, as the command line and pods say it, too.
    causes = {cause.value: meaning for cause, (meaning, _) in MEANINGS.items()}
    said = {code.value: said for code, said in SENTENCES.items()} | causes
    return b"export const SENTENCES = %s;\n" % orjson.dumps(said)


class PageFiles:
    """Answers with the files by name."""

    def __init__(self) -> None:
        found = [file for file in files(__name__).iterdir() if file.name.rpartition(".")[2] in TYPES]
        self._files = {file.name: file.read_bytes() for file in found}
        self._files["sentences.js"] = _sentences()
        self._tags = {name: hashlib.sha256(body).hexdigest()[:32] for name, body in self._files.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the files."""
        return tuple(self._files)

    def body(self, name: str) -> bytes:
        """A file by its name; raises KeyError for none."""
        return self._files[name]

    def add_to(self, app: web.Application) -> None:
        """Adds the routes of the page to an application."""
        app.router.add_get(PATH, self._answer, name=PAGE[0])
        app.router.add_get(f"{PATH}/{{file}}", self._answer, name=PAGE[1])

    async def _answer(self, request: web.Request) -> web.Response:
        # Raises Refusal for a file that is not there.
        name = request.match_info.get("file", "index.html")
        body = self._files.get(name)
        if body is None:
            raise refused(Code.NO_SUCH_PATH, "path", name if name.isalnum() else "")
        headers = {**HEADERS, "ETag": f'W/"{self._tags[name]}"'}  # weak: the same file, packed or not
        if request.headers.get("If-None-Match") == headers["ETag"]:
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type=TYPES[name.rpartition(".")[2]], charset="utf-8", headers=headers)
