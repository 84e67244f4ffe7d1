"""Variables that a batch script reads and its pods do not have: found by name and line before it is submitted. Pure."""

import re
from collections.abc import Collection, Iterator

from tessera.client.slurm.scripts.against import Lost
from tessera.client.slurm.scripts.pods import RESTART_COUNT, SUBMIT_DIR, is_shell

_READ = re.compile(r"\$(?:\{(?P<braced>[A-Za-z_]\w*)(?P<otherwise>:?[-+=?])?|(?P<plain>[A-Za-z_]\w*))")
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_OF_EVERY_SHELL = frozenset(
    {"HOME", "PATH", "PWD", "OLDPWD", "SHELL", "HOSTNAME", "TERM", "LANG", "SHLVL", "TMPDIR", "LD_LIBRARY_PATH"}
    | {"PYTHONPATH", "CUDA_VISIBLE_DEVICES", "PS1", "DISPLAY", "VIRTUAL_ENV", "CONDA_PREFIX", "EDITOR", "_"}
)
"""Variables of the image or its shell, of which nobody means the value that they have on the submitting machine."""
_INSTEAD = {
    "SLURM_TMPDIR": "write to /tmp or a volume",
    "SLURM_LAUNCH_NODE_IPADDR": "the first pod's address is MASTER_ADDR",
}


def variables_lost(text: str, in_pods: Collection[str], here: Collection[str]) -> Iterator[Lost]:
    """Notes about Slurm's variables that are not among those `in_pods`, and others that are set `here` alone."""
    if not is_shell(text):
        return
    text, seen = _COMMENT.sub("", text), set[str]()
    for found in _READ.finditer(text):
        name = found["braced"] or found["plain"]
        if name in seen or (name in in_pods and name != SUBMIT_DIR):
            continue
        line = text.count("\n", 0, found.start()) + 1
        if name == SUBMIT_DIR:
            seen.add(name)
            yield Lost(line, f"${name}: is the directory in which the pod begins, with files of its own", refused=False)
        elif name.startswith(("SLURM", "SBATCH_")) and name != RESTART_COUNT:
            if found["otherwise"] is None and not _is_set(name, text):
                seen.add(name)
                way_out = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
                yield Lost(line, f"${name}: no pod has it, so it is empty{way_out}", refused=False, about=name)
        elif name in here and name not in _OF_EVERY_SHELL and not _is_set(name, text):
            seen.add(name)
            yield Lost(line, f"${name}: is set here and not in pods; say --export={name}", refused=False, about=name)


def _is_set(name: str, text: str) -> bool:
    """Whether the script sets it to what does not come from itself."""
    for found in re.finditer(rf"(?:\b(?:for|read)\b[^\n;]*\b{name}\b|(?<![\w$]){name}=(?P<value>[^\n]*))", text):
        if found["value"] is None or not re.match(rf"[\"']?\$\{{?{name}\b", found["value"]):
            return True
    return False
