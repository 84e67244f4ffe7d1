"""Words of a container as the kubelet hands them to its program."""

from collections.abc import Mapping


def expanded(text: str, env: Mapping[str, str]) -> str:
    """
    A word of `command` or `args`, or a value of `env`, as the program gets it.

    Letter by letter as third_party/forked/golang/expansion/expand.go of Kubernetes has it, which works on bytes: one
    behind a `$` that begins nothing becomes a letter by itself.
    """
    given, made, at = text.encode(), b"", 0
    while at < len(given):
        if given[at : at + 1] != b"$" or at + 1 == len(given):
            made, at = made + given[at : at + 1], at + 1
        elif given[at + 1 : at + 2] == b"$":
            made, at = made + b"$", at + 2
        elif given[at + 1 : at + 2] == b"(" and (end := given.find(b")", at + 2)) >= 0:
            name = given[at + 2 : end].decode()
            made, at = made + env.get(name, f"$({name})").encode(), end + 1
        else:
            made, at = made + f"${chr(given[at + 1])}".encode(), at + 2
    return made.decode(errors="replace")
