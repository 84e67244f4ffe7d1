"""Services by their names: the way of `tessera run`, which needs nothing of the client."""

import os
import sys
from importlib import import_module

from tessera.kernel.errors import StartupError
from tessera.kernel.process.settings import ServiceSettings, load_settings
from tessera.kernel.process.unknown_settings import unknown_variables
from tessera_schemas.shard.services import SERVICES

USAGE_ERROR, UNAVAILABLE = 2, 5


def run_named(services: str, shard: str | None = None) -> int:
    """
    Run a service, or several in one process (`queueing+preemption`); returns the exit code.

    The shard is the one that their settings say unless one is named.
    """
    names = services.split("+")
    for name in names:
        if name not in SERVICES or names.count(name) > 1:
            why = "named twice" if name in SERVICES else "there is none, and an image runs by `tessera run -it IMAGE`"
            print(f"error: service {name}: {why}; choose one of {', '.join(SERVICES)}", file=sys.stderr)
            return USAGE_ERROR
    from tessera.kernel.process.lifecycle import Hosted, run_services

    for line in unknown_variables(os.environ, settings_models()):
        print(f"warning: {line}", file=sys.stderr)
    try:
        named = {} if shard is None else {"shard": shard}
        settings = [load_settings(_settings_of(name), **named) for name in names]
        run_services([Hosted(import_module(f"tessera.{one.service}.main").serve, one) for one in settings])
    except StartupError as error:
        print(f"error: {error}", file=sys.stderr)
        return UNAVAILABLE
    return 0


def settings_models() -> list[type[ServiceSettings]]:
    """The settings of all services, which may share one environment."""
    return [_settings_of(service) for service in SERVICES]


def _settings_of(service: str) -> type[ServiceSettings]:
    """The one settings model that names itself after the service."""
    module = import_module(f"tessera.{service}.settings")
    models = [m for m in vars(module).values() if isinstance(m, type) and issubclass(m, ServiceSettings)]
    return next(model for model in models if model.service == service)
