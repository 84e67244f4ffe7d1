"""One service by its name: the way of `tessera run`, which needs nothing of the client."""

import sys
from importlib import import_module

from tessera.kernel.errors import StartupError
from tessera.kernel.process.settings import ServiceSettings, load_settings
from tessera_schemas.services import SERVICES

USAGE_ERROR, UNAVAILABLE = 2, 5


def run_named(service: str, shard: str) -> int:
    """Run one service until it is told to stop; returns its exit code."""
    if service not in SERVICES:
        print(f"error: service {service}: there is none; choose one of {', '.join(SERVICES)}", file=sys.stderr)
        return USAGE_ERROR
    from tessera.kernel.process.lifecycle import run_service

    try:
        run_service(import_module(f"tessera.{service}.main").serve, load_settings(_settings_of(service), shard=shard))
    except StartupError as error:
        print(f"error: {error}", file=sys.stderr)
        return UNAVAILABLE
    return 0


def _settings_of(service: str) -> type[ServiceSettings]:
    """The one settings model that names itself after the service."""
    module = import_module(f"tessera.{service}.settings")
    models = [m for m in vars(module).values() if isinstance(m, type) and issubclass(m, ServiceSettings)]
    return next(model for model in models if model.service == service)
