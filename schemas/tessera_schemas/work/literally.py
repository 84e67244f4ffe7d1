"""
Words that reach a program as they were written, through the one reading that Kubernetes does.

In `command`, `args` and values of `env` the kubelet puts a variable of the container in the place of `$(NAME)`, and `$`
in the place of `$$`. A job's template keeps that meaning; a script, a command line and other words of people, which go
into a template by our hand, do not mean it.
"""

import re

ARGUMENT_CHARACTERS = 32_768
"""Longest argument or value of a variable in a job, as it is written there; Linux takes 128 KiB in one."""

_READ_BY_KUBERNETES = re.compile(r"\$(?=[$(]|[^\x00-\x7f]|\Z)")
"""It means something before `$` and `(`; what is not ASCII behind it is broken; at the end more may follow."""


def literally(text: str) -> str:
    """
    The text of which the kubelet makes `text`.

    Source: third_party/forked/golang/expansion/expand.go in Kubernetes.
    """
    return _READ_BY_KUBERNETES.sub("$$", text)
