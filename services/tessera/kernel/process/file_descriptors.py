"""Limit of open files and connections of this process."""

import resource

WANTED = 65_536  # some systems allow a billion, and then programs that we start close each of them


def raise_soft_limit() -> None:
    """
    Raises the soft limit to the hard one, which needs no right; the usual 1,024 is for programs that use select().
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # a sandbox says no; what is there has to do
            return


def soft_limit() -> int:
    """Number of descriptors that this process may have open; 65,536 where nothing limits them."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft == resource.RLIM_INFINITY else soft
