"""
Heads of a ledger that are kept elsewhere: written down, signed, read back.

They are signed with OpenSSH's `ssh-keygen`, by the keys that operators have; we keep no code that signs.
"""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tessera.client.input.files import read_text
from tessera.client.outcomes import Exit, Failure
from tessera_schemas.shard.ledger_form import Head

NAMESPACE = "tessera-ledger-head"
"""What the signature is about, so that nobody passes off one that the key made for something else."""
SIGNATURE = "-----BEGIN SSH SIGNATURE-----"
ANY = "operator"
LINE_MAX = 120
"""Characters of a line that is to hold a head: one has 85 at most, and more of it is not repeated in a message."""


def signature_of(head: Head, key: Path) -> str:
    """The head signed with a private key of OpenSSH; asks for its passphrase, or takes it from ssh-agent."""
    done = _ssh_keygen(["-Y", "sign", "-q", "-f", str(key), "-n", NAMESPACE], head)
    if done.returncode != 0:
        raise Failure(Exit.USAGE, f"--sign {key}: {_read_error(done)}; name a private key that `ssh-keygen` made")
    return done.stdout.decode()


def read_kept_head(anchor: str, public_key: Path | None) -> Head | None:
    """
    The head that `--anchor` names, N:HASH or a file that begins with it; None for none.

    With a public key the file must hold the head's signature by it.
    """
    if not anchor:
        if public_key is not None:
            raise Failure(Exit.USAGE, "--public-key: says whose signature `--anchor FILE` has; name that file, too")
        return None
    is_file = ":" not in anchor or Path(anchor).is_file()
    text = read_text(Path(anchor)) if is_file else anchor
    first, _, rest = text.partition("\n")
    first = first[:LINE_MAX]
    try:
        head = Head.parse(first)
    except ValueError as error:
        raise Failure(Exit.USAGE, f"--anchor: {error}") from error
    if public_key is not None:
        _verify(head, rest, anchor, public_key)
    return head


def _verify(head: Head, signature: str, anchor: str, public_key: Path) -> None:
    if not signature.startswith(SIGNATURE):
        raise Failure(Exit.FAILED, f"--anchor {anchor}: has no signature; write it with `tessera ledger head --sign`")
    with TemporaryDirectory() as folder:
        signed, signers = Path(folder, "signature"), Path(folder, "signers")
        signed.write_text(signature, encoding="utf-8")
        signers.write_text(f'{ANY} namespaces="{NAMESPACE}" {read_text(public_key)}', encoding="utf-8")
        named = ["-f", str(signers), "-I", ANY, "-n", NAMESPACE, "-s", str(signed)]
        done = _ssh_keygen(["-Y", "verify", *named], head)
    if done.returncode != 0:
        raise Failure(Exit.FAILED, f"--anchor {anchor}: {public_key} did not sign this head ({_read_error(done)})")


def _ssh_keygen(words: Sequence[str], head: Head) -> "subprocess.CompletedProcess[bytes]":
    tool = shutil.which("ssh-keygen")
    if tool is None:
        raise Failure(Exit.UNAVAILABLE, "ssh-keygen: not found on PATH; signatures are OpenSSH's, install its client")
    return subprocess.run(  # noqa: S603  # no shell; the words are ours and the names of files
        [tool, *words], input=f"{head}\n".encode(), capture_output=True, check=False
    )


def _read_error(done: "subprocess.CompletedProcess[bytes]") -> str:
    return " ".join((done.stderr or done.stdout).decode(errors="replace").split()) or f"exit code {done.returncode}"
