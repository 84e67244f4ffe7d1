"""Pages of docs as tests follow them: the commands of a section, in their order and as they stand there."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def commands_of(page: str, section: str) -> list[str]:
    """The shell blocks of one section of `docs/PAGE`, up to the next heading."""
    text = (DOCS / page).read_text().split(f"# {section}\n", 1)[1]
    text = re.split(r"^##", text, maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"^ *```sh\n(.*?)^ *```", text, flags=re.MULTILINE | re.DOTALL)
