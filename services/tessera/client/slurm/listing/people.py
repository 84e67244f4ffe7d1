"""Numbers of users and groups, as this machine knows them: Slurm prints them beside the names."""

import getpass
import grp
import pwd
import re
from functools import cache

NOBODY = 65534
"""Number of a user that this machine does not know."""


@cache
def uid_of(name: str) -> int:
    """Number of the user of this name."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):  # ValueError: a name with a zero byte
        return NOBODY


@cache
def group_of(name: str) -> tuple[str, int]:
    """Name and number of the user's first group."""
    try:
        gid = pwd.getpwnam(name).pw_gid
        return grp.getgrgid(gid).gr_name, gid
    except (KeyError, ValueError):
        return "nogroup", NOBODY


def submitter() -> str:
    """Name of the user who submits, by which people of a tenant take turns; "" where the machine does not know it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return ""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("._-")[:63].rstrip("._-")
