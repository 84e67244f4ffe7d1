"""What the step runner of a first pod leaves at its end, and the pod that has it."""

import json
from typing import Any

from tessera.domain.last_words import MARK
from tessera_schemas.base import Json
from tessera_schemas.work.pod_template import STEPS_CONTAINER
from tests.unit.binder.binder_builders import api_pod


def word(**said: Any) -> str:
    return f"{MARK}1 {json.dumps(said)}"


def first_pod(
    message: str, phase: str = "Failed", exit_code: int = 75, runner: str = STEPS_CONTAINER, **more: Any
) -> Json:
    pod = api_pod(0, phase, exit_code=exit_code, **more)
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = message
    pod["status"]["initContainerStatuses"] = [{"name": runner, "state": {"terminated": {"exitCode": 0}}}]
    return pod
