"""Puts off imports that libraries make in passing: they took a third of the CPU time of a command that needs none."""

import logging
import os
import sys
from importlib.util import LazyLoader, find_spec, module_from_spec


def put_off_imports() -> None:
    """
    Have aiohttp and package metadata imported when they are used, and rich when it is imported by name.

    nats-py imports aiohttp for WebSockets, structlog imports rich for tracebacks on terminals, pydantic looks through
    the metadata of every installed package for plugins. Called once, before any of them is imported, and only by a
    process that is all our own: other libraries might import parts of a module that is not loaded yet.
    """
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _import_when_used("importlib.metadata")
    _import_when_used("aiohttp")
    if "rich" not in sys.modules:
        sys.modules["rich"] = None  # type: ignore[assignment]  # importing it fails, which structlog is ready for
        import structlog

        del sys.modules["rich"]
        structlog.configure(  # errors only, and on stderr, since stdout is for programs
            wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        )


def _import_when_used(name: str) -> None:
    """Imports the module at its first use, as the documentation of `importlib.util.LazyLoader` shows."""
    spec = find_spec(name)
    if name in sys.modules or spec is None or spec.loader is None:
        return
    spec.loader = LazyLoader(spec.loader)
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
