"""What libraries import in passing, put off: it took a third of the CPU time of a command that needs none of it."""

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec


def put_off_imports() -> None:
    """
    Have aiohttp imported when it is used, and rich when it is imported by name.

    nats-py imports aiohttp for WebSockets, structlog imports rich for tracebacks on terminals. Called once, before
    either is imported, and only by a process that is all our own: other libraries might import parts of a module that
    is not loaded yet.
    """
    _import_when_used("aiohttp")
    if "rich" not in sys.modules:
        sys.modules["rich"] = None  # type: ignore[assignment]  # importing it fails, which structlog is ready for
        import structlog  # noqa: F401

        del sys.modules["rich"]


def _import_when_used(name: str) -> None:
    """As the documentation of `importlib.util.LazyLoader` does it."""
    spec = find_spec(name)
    if name in sys.modules or spec is None or spec.loader is None:
        return
    spec.loader = LazyLoader(spec.loader)
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
