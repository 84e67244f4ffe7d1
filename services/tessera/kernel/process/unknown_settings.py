"""Names of settings that nobody knows, told with the nearest name that there is: a slip of the pen is never silence."""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel

OTHERS = frozenset(
    {
        *("CONFIG_FILE", "HOME", "API", "TOKEN", "TOKEN_FILE"),  # of the command
        *("DATA", "NATS_SERVER", "REDIS_SERVER"),  # of the local platform and the lab
        *(
            "JOB_ID",
            "JOB_NUMBER",
            "JOB_NAME",
            "ROLE",
            "RANK",
            "WORLD_SIZE",
            "ATTEMPT",
            "MIN_REPLICAS",
            "MAX_REPLICAS",
        ),  # of pods
        *("SESSION_IDLE_SECONDS", "SESSION_WARNING_SECONDS", "SESSION_ON_IDLE"),  # of notebooks' pods
        *("SESSION_PATH", "SESSION_URL"),  # of those behind an Ingress
        *("ARRAY_ID", "ARRAY_NUMBER", "ARRAY_TASK", "CHECKPOINT_PATH", "CONTAINER_IMAGE", "STEPS"),
        *("VERSION", "IMAGES", "NATS_IMAGE", "REDIS_IMAGE", "KUBECONFIG", "TENANT"),  # of docker-compose.yml
        *("PROMETHEUS_IMAGE", "GRAFANA_IMAGE"),
        # Of pods with the step runner.
        *("STEPS_HOSTS", "STEPS_SLOTS", "STEPS_PORT", "STEPS_KEY", "STEPS_WARNING", "STEPS_PID", "STEPS_PATH"),
        *("API_PORTS", "NATS_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT", "WEBHOOK_HTTP", "WEBHOOK_NETWORKS"),
        "EVERY_DAMAGE",  # of `make damage`
    }
)
"""What is read besides the services' settings, without `TESSERA_`; a test holds it against the source."""
OF_GROUPS = "GROUP_"
"""Begin of the variables that tell a pod its copy of each group, whose names are the job's."""
_LINK = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)=|_PORT_\d+_\w+=|_PORT=\w+://")
"""Ends of the variables by which Kubernetes shows a pod the Services of its namespace."""


def unknown_variables(environment: Mapping[str, str], models: Iterable[type["BaseModel"]]) -> list[str]:
    """A line for each variable `TESSERA_…` that is no setting of these models and nothing else of ours."""
    known = OTHERS.union(*({field.upper() for field in model.model_fields} for model in models))
    names = sorted(name for name in environment if name.startswith("TESSERA_"))
    asked = {name: name.removeprefix("TESSERA_").partition("__")[0] for name in names}
    return [
        f"{name}: no setting is called so{nearest(short, known, 'TESSERA_')}; it has no effect"
        for name, short in asked.items()
        if short not in known and not short.startswith(OF_GROUPS) and not _LINK.search(f"{name}={environment[name]}")
    ]


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """The known name that is most like it, in words to go on with; "" where none is."""
    found = get_close_matches(name, sorted(known), 1)
    return f" (is {prefix}{found[0]} meant?)" if found else ""
