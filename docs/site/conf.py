"""
The documentation as a site: `make docs`. Sphinx reads the same Markdown that the repository shows.

MyST reads the dialect that the repository's pages are written in; furo brings its own styles and scripts and system
fonts, so that a built page loads nothing from elsewhere. A warning is an error: links and their anchors are checked.
"""

import re
import shutil
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "README.md"
SECTION = re.compile(r"^\*\*(.+)\*\*$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)")
ANY_LINK = re.compile(r"\[([^]]*)\]\(([^)#:]+)\)")
LOADS = re.compile(r"""<(?:script|link|img|iframe)[^>]+(?:src|href)=["']((?:https?:)?//[^"']+)""")
STYLES = re.compile(r"""(?:url\(["']?|@import\s+["'])((?:https?:)?//[^"')]+)""")

TREE = "```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```"

project = "Tessera"
author = "the Tessera authors"
copyright = "the Tessera authors, Apache License 2.0"  # noqa: A001 - Sphinx reads this name
root_doc = "README"
include_patterns = ["*.md", "docs/**", "integrations/README.md"]
exclude_patterns = [".*", "**/.*", "services", "schemas", "tests", "deploy", "build", "screenshots", "docs/site"]
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
suppress_warnings = ["myst.header"]  # a page may begin a list of decisions with a smaller title
myst_heading_anchors = 4
nitpicky = True

html_theme = "furo"
html_title = "Tessera"
html_copy_source = False
html_use_index = False
html_show_sphinx = False
pygments_style = "friendly"


def _listed() -> str:
    """The side bar: the index of the documentation by need, each of its sections a caption."""
    text = INDEX.read_text()
    sections = SECTION.split(_without_folders("docs/README", text))[1:]
    trees, seen = [TREE.format(caption="Contents", pages="/docs/README")], {"README", "docs/README"}
    for caption, body in zip(sections[::2], sections[1::2], strict=True):
        pages = []
        for link in LINK.findall(body):
            path = (INDEX.parent / link).resolve().relative_to(ROOT)
            page = str(path.with_suffix(""))
            if page not in seen:
                seen.add(page)
                pages.append(f"/{page}")
        trees.append(TREE.format(caption=caption, pages="\n".join(pages)))
    return "\n\n".join(trees)


def _without_folders(name: str, text: str) -> str:
    """A link to a folder leads to the page in it, where there is one, and else nowhere: its words stay."""

    def linked(found: re.Match[str]) -> str:
        folder = (ROOT / name).parent / found[2]
        if not folder.is_dir():
            return found[0]
        return f"[{found[1]}]({found[2].rstrip('/')}/README.md)" if (folder / "README.md").exists() else found[1]

    return ANY_LINK.sub(linked, text)


def _decisions() -> str:
    pages = sorted(page.stem for page in (ROOT / "docs" / "adr").glob("0*.md"))
    return "\n".join(["```{toctree}", ":maxdepth: 1", "", *pages, "```"])


def add_side_bar(app: Any, name: str, source: list[str]) -> None:
    """Pages get what the repository's own view does not need: the tree of pages, and links that name a file."""
    source[0] = _without_folders(name, source[0])
    if name == "README":
        source[0] += "\n\n" + _listed()
    if name == "docs/adr/README":
        source[0] += "\n\n" + _decisions()


def refuse_the_network(app: Any, failure: Exception | None) -> None:
    """Raises ValueError if a built page or style would load anything from another host."""
    if failure is not None:
        return
    out = Path(app.outdir)
    shutil.copy(out / "README.html", out / "index.html")
    for files, loads in (("*.html", LOADS), ("*.css", STYLES)):
        for file in out.rglob(files):
            if found := loads.search(file.read_text()):
                raise ValueError(f"{file.relative_to(out)} loads {found[1]}; ship it, or leave it out")


def setup(app: Any) -> dict[str, bool]:
    """Connects the functions above."""
    app.add_lexer("mermaid", TextLexer)  # a drawing's source is shown; its library would be fetched
    app.connect("source-read", add_side_bar)
    app.connect("build-finished", refuse_the_network)
    return {"parallel_read_safe": True}
