"""The script of a notebook's pod with its watch, which looks often, beside the server that it is told."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tessera.client.commands.sessions import idle_watch
from tessera.client.commands.sessions.notebook import WITH_TOKEN
from tessera.client.commands.sessions.reaching import TOKEN_FILE


class Watched:
    """The pod's script with the watch, which looks often; files are in a folder of the test."""

    def __init__(
        self, folder: Path, port: int, idle: int, server: Sequence[str], action: str = "pause", **more: str
    ) -> None:
        """`more` are variables of the pod."""
        self.word, self.warning, self.token = folder / "word", folder / "warning", folder / "token"
        source = Path(idle_watch.__file__).read_text()
        # The machine's other processes, which a container does not see, are not to count.
        for name, value in {"POLL_SECONDS": 0.05, "GRACE_SECONDS": 5.0, "BUSY_CORES": 1e9}.items():
            source = source.replace(f"{name} = {getattr(idle_watch, name)}", f"{name} = {value}")
        source = source.replace(idle_watch.LAST_WORD_FILE, str(self.word))
        source = source.replace(idle_watch.WARNING_FILE, str(self.warning))
        script = WITH_TOKEN.replace(TOKEN_FILE, str(self.token))
        said = {"IDLE_SECONDS": str(idle), "WARNING_SECONDS": str(idle - 1), "ON_IDLE": action}
        environment = {f"TESSERA_SESSION_{name}": value for name, value in said.items()}
        environment |= {"PATH": os.environ["PATH"], "HOME": str(folder)} | more
        words = ["/bin/sh", "-c", script, "notebook", source, str(port), *server]
        self.process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)

    def said_until(self, words: str) -> str:
        """What it writes up to the line with these words, which it has to write."""
        assert self.process.stderr is not None
        lines = ""
        for line in self.process.stderr:
            lines += line
            if words in line:
                return lines
        raise AssertionError(f"it ended without {words!r}: {lines}")

    def end(self) -> int:
        return self.process.wait(120)
