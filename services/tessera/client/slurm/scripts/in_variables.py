"""
Variables that a batch script reads: those that go along from the shell that submits, as with Slurm, and Slurm's own
that no pod has. Found by name and line before it is submitted. Pure.
"""

import re
from collections.abc import Collection, Iterator

from tessera.client.slurm.scripts.against import Lost
from tessera.client.slurm.scripts.pods import RESTART_COUNT, SUBMIT_DIR, is_shell

_READ = re.compile(r"\$(?:\{(?P<braced>[A-Za-z_]\w*)(?P<otherwise>:?[-+=?])?|(?P<plain>[A-Za-z_]\w*))")
_READ_BY_PYTHON = re.compile(
    r"""(?:environ\s*\[\s*|environ\.get\(\s*|getenv\(\s*)(?:"(?P<braced>[A-Za-z_]\w*)"|'(?P<plain>[A-Za-z_]\w*)')"""
)
_SLURMS = ("SLURM", "SBATCH_")
_OWN_FOLDER = re.compile(
    r"\b(?:dirname|realpath|readlink)\b[^\n;|&]*?\$\{?(?:0|BASH_SOURCE)\b|\$\{(?:0|BASH_SOURCE(?:\[-?\d\])?)%"
)
"""A shell's ways to ask for the directory of its script."""
_SECRET = re.compile(r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH|COOKIE|PRIVATE|SESSION|CERT", re.IGNORECASE)
EXPORTED_MAX, VALUE_CHARACTERS = 64, 1024
"""Most variables that go along unnamed, and the longest value of one."""
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


def variables_read(text: str, in_pods: Collection[str]) -> Iterator[tuple[int, str]]:
    """
    Variables that the script reads before it sets them itself, each once with its line.

    Neither Slurm's own, nor those that are `in_pods`, nor those that every image has.
    """
    shell, seen = is_shell(text), set[str]()
    text = _COMMENT.sub("", text) if shell else text
    for found in (_READ if shell else _READ_BY_PYTHON).finditer(text):
        name = found["braced"] or found["plain"]
        if name in seen or name in in_pods or name in _OF_EVERY_SHELL or name.startswith(_SLURMS):
            continue
        if not shell or not _is_set(name, text):
            seen.add(name)
            yield text.count("\n", 0, found.start()) + 1, name


def kept_here(name: str, value: str) -> str:
    """Why the value of a variable stays on the machine that submits; "" for one that may go along."""
    if _SECRET.search(name):
        return "it looks like a secret"
    if name.endswith("PATH"):
        return "it names places of this machine"
    return "" if len(value) <= VALUE_CHARACTERS and value.isprintable() else "its value is long, or not printable"


def variables_lost(text: str, in_pods: Collection[str]) -> Iterator[Lost]:
    """Notes about Slurm's variables that a script reads and that are not among those `in_pods`, and its own folder."""
    if not is_shell(text):
        return
    text, seen = _COMMENT.sub("", text), set[str]()
    if found := _OWN_FOLDER.search(text):
        said = "the script's directory is the one in which the pod begins, with files of its own (Slurm's is a spool's)"
        yield Lost(text.count("\n", 0, found.start()) + 1, said, refused=False)
    for found in _READ.finditer(text):
        name = found["braced"] or found["plain"]
        if name in seen or not name.startswith(_SLURMS) or (name in in_pods and name != SUBMIT_DIR):
            continue
        line = text.count("\n", 0, found.start()) + 1
        if name == SUBMIT_DIR:
            seen.add(name)
            yield Lost(line, f"${name}: is the directory in which the pod begins, with files of its own", refused=False)
        elif name != RESTART_COUNT and found["otherwise"] is None and not _is_set(name, text):
            seen.add(name)
            way_out = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
            yield Lost(line, f"${name}: no pod has it, so it is empty{way_out}", refused=False, about=name)


def _is_set(name: str, text: str) -> bool:
    """Whether the script sets it to what does not come from itself."""
    for found in re.finditer(rf"(?:\b(?:for|read)\b[^\n;]*\b{name}\b|(?<![\w$]){name}=(?P<value>[^\n]*))", text):
        if found["value"] is None or not re.match(rf"[\"']?\$\{{?{name}\b", found["value"]):
            return True
    return False
