"""Puts off imports that libraries make in passing: they took a third of the CPU time of a command that needs none."""

import logging
import os
import sys
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import LazyLoader, find_spec, module_from_spec
from types import ModuleType


def put_off_imports() -> None:
    """
    Have aiohttp, structlog and package metadata imported when they are used, and rich when it is imported by name.

    nats-py imports aiohttp for WebSockets, structlog imports rich for tracebacks on terminals, pydantic looks through
    the metadata of every installed package for plugins. Called once, before any of them is imported, and only by a
    process that is all our own: other libraries might import parts of a module that is not loaded yet.
    """
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _import_when_used("importlib.metadata")
    _import_when_used("aiohttp")
    _import_when_used("structlog", _WithoutRich)


class _WithoutRich(Loader):
    """Loads structlog as if there were no rich, which it is ready for, and lets it say errors alone, on stderr."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to the loader of files."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load it and set it up; stdout is for programs."""
        hidden = "rich" not in sys.modules
        if hidden:
            sys.modules["rich"] = None  # type: ignore[assignment]  # importing it fails
        try:
            self._loader.exec_module(module)
        finally:
            if hidden:
                del sys.modules["rich"]
        module.configure(
            wrapper_class=module.make_filtering_bound_logger(logging.ERROR),
            logger_factory=module.PrintLoggerFactory(sys.stderr),
        )


def _import_when_used(name: str, wrap: Callable[[Loader], Loader] = lambda loader: loader) -> None:
    """Imports the module at its first use, as the documentation of `importlib.util.LazyLoader` shows."""
    spec = find_spec(name)
    if name in sys.modules or spec is None or spec.loader is None:
        return
    spec.loader = LazyLoader(wrap(spec.loader))
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
