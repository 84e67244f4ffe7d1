"""
One source, two ways to run it: compiled by numba where it is installed, else plain Python on the same arrays.

Everything decorated here is integer arithmetic on int64 (or int32) arrays without overflow, so that both ways give the
same bits; a test runs both. Compiled code is kept between runs in a directory named after the sources: numba looks
only at the file of each function, and would serve stale code when a function that it calls has changed.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from os import environ
from pathlib import Path
from typing import Any, TypeVar, cast

try:
    import numba
except ImportError:  # the extra `lab` is not installed
    numba = None  # type: ignore[assignment]

F = TypeVar("F", bound=Callable[..., Any])

COMPILED = numba is not None and not environ.get("NUMBA_DISABLE_JIT")


def _cache_directory() -> Path:
    base = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    wings = Path(__file__).parent, Path(__file__).parent.parent / "scoring"  # whose constants are compiled in
    # Sorted, so that equal sources name one directory wherever files are listed in another order.
    sources = b"".join(path.read_bytes() for wing in wings for path in sorted(wing.glob("*.py")))
    return base / "tessera" / f"compiled-{hashlib.sha256(sources).hexdigest()[:16]}"


if COMPILED and not environ.get("NUMBA_CACHE_DIR"):
    with suppress(OSError, RuntimeError):  # no home directory: numba finds a place of its own, or none
        numba.config.CACHE_DIR = str(_cache_directory())  # type: ignore[attr-defined]


def compiled(function: F) -> F:
    """Compile at the first call, or leave as it is."""
    return _compiled(function, {})


def compiled_lean(function: F) -> F:
    """
    Compiles like `compiled`, for functions that make no array.

    They need not count references to the arrays in their arguments. For a tuple of arrays the counting costs fifty
    times what these functions do: a whole test of a node takes 20 ns without it and 900 ns with it.
    """
    return _compiled(function, {"_nrt": False, "forceinline": True})


def _compiled(function: F, options: dict[str, Any]) -> F:
    if not COMPILED:
        return function
    try:
        return cast(F, numba.njit(cache=True, nogil=True, **options)(function))
    except RuntimeError:  # nowhere to keep it: compile at every start
        return cast(F, numba.njit(nogil=True, **options)(function))
