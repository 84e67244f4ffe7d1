"""
A script longer than one argument: handed over in several, which its own interpreter puts together as it starts. Pure.

Linux takes 128 KiB in one argument of a program, and the contract less; a shell's or Python's own text has no bound.
The script sees the same `$0`, arguments and `sys.argv` as where it is one argument, and no name of ours.
"""

from collections.abc import Sequence

from tessera_schemas.work.pod_template import ARGUMENT_CHARACTERS, literally

ARGUMENT_BYTES = 128 * 1024 - 1
"""Bytes of one argument that Linux hands to a program (MAX_ARG_STRLEN), without the zero that ends it."""
PIECE_CHARACTERS = ARGUMENT_CHARACTERS // 2
"""Written for the kubelet a piece may be twice as long: `$` is `$$`. In UTF-8 it has 64 KiB at most."""


def is_long(text: str) -> bool:
    """Whether one argument does not hold the text."""
    return len(literally(text)) > ARGUMENT_CHARACTERS or len(text.encode(errors="replace")) > ARGUMENT_BYTES


def for_shell(text: str, name: str, arguments: Sequence[str]) -> list[str]:
    """Words behind a shell that run the text with `name` as `$0`; the pieces are shifted away before its first line."""
    pieces = _pieces(text)
    whole = "".join(f"${{{place}}}" for place in range(1, len(pieces) + 1))
    return ["-c", f'eval "shift {len(pieces)};{whole}"', name, *pieces, *arguments]


def for_python(text: str, arguments: Sequence[str]) -> list[str]:
    """Words behind Python that run the text as its main module."""
    pieces = _pieces(text)
    whole = f"''.join(__import__('sys').argv.pop(1) for _ in range({len(pieces)}))"
    return ["-c", f"exec(compile({whole}, '<string>', 'exec'))", *pieces, *arguments]


def _pieces(text: str) -> list[str]:
    return [text[at : at + PIECE_CHARACTERS] for at in range(0, len(text), PIECE_CHARACTERS)]
