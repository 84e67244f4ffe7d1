"""Puts off imports that libraries make in passing: they took a third of the CPU time of a command that needs none."""

import logging
import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import LazyLoader, find_spec, module_from_spec
from types import ModuleType
from typing import Any

METADATA = "importlib.metadata"


def put_off_plugins() -> None:
    """Have pydantic look for no plugins of itself in every installed package, nor import what looks for them."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if METADATA not in sys.modules:
        sys.modules[METADATA] = _Metadata(METADATA)


def put_off_imports() -> None:
    """
    Have aiohttp and structlog imported when they are used, and rich when it is imported by name.

    nats-py imports aiohttp for WebSockets, structlog imports rich for tracebacks on terminals, redis OpenTelemetry's
    metrics to count its own. Called before any of them is imported, and only by a process that is all our own: other
    libraries might import parts of a module that is not loaded yet, and typer loads all when it looks for a source.
    """
    put_off_plugins()
    _import_when_used("aiohttp")
    _import_when_used("structlog", _WithoutRich)
    sys.modules.setdefault("opentelemetry.sdk.metrics", None)  # type: ignore[arg-type]  # redis does without


class _Metadata(ModuleType):
    """
    Stands for `importlib.metadata` until something of it is called or looked up.

    pydantic imports `entry_points` by name for the plugins that are switched off, which a lazy module cannot put off.
    """

    def entry_points(self, **asked: str) -> Any:
        """Entry points as the real module finds them."""
        return self._real().entry_points(**asked)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._real(), name)

    def _real(self) -> ModuleType:
        if sys.modules.get(METADATA) is self:
            del sys.modules[METADATA]
        return import_module(METADATA)


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
