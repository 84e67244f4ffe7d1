"""
The idempotency key of a submit: whoever sends it again with the same key gets the same job.

A CI system runs a step again with the same run id and a higher attempt: within one attempt a repeated submit is the
same job, and a person who presses "re-run" gets a new one.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tessera.client.outcomes import Exit, Failure

KEY_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class CiSystem:
    """
    The variables by which a CI system names its run and attempt; all of `run` must be set, `attempt` may be missing.
    """

    name: str
    marker: str
    run: tuple[str, ...]
    attempt: str = ""


CI_SYSTEMS = (
    CiSystem("github", "GITHUB_ACTIONS", ("GITHUB_REPOSITORY", "GITHUB_RUN_ID", "GITHUB_JOB"), "GITHUB_RUN_ATTEMPT"),
    CiSystem("gitlab", "GITLAB_CI", ("CI_PROJECT_PATH", "CI_PIPELINE_ID", "CI_JOB_ID")),
    CiSystem("buildkite", "BUILDKITE", ("BUILDKITE_BUILD_ID", "BUILDKITE_STEP_ID"), "BUILDKITE_RETRY_COUNT"),
    CiSystem("jenkins", "JENKINS_URL", ("JOB_NAME", "BUILD_NUMBER")),
    CiSystem(
        "circleci", "CIRCLECI", ("CIRCLE_PROJECT_REPONAME", "CIRCLE_WORKFLOW_ID", "CIRCLE_JOB"), "CIRCLE_BUILD_NUM"
    ),
)


@dataclass(frozen=True, slots=True)
class ChosenKey:
    """`source` is `given`, the CI system's name, or `random`; a random key must be shown before it is used."""

    key: str
    source: str


def choose_key(
    given: str | None, job_name: str, environment: Mapping[str, str], random: Callable[[], str]
) -> ChosenKey:
    """The client's key, else one made from the CI run, else a random one. Raises Failure for an empty one."""
    if given == "":
        raise Failure(Exit.USAGE, "key: empty, perhaps by a variable that is not set; give a key, or leave it out")
    if given:
        return ChosenKey(given, "given")
    for ci in CI_SYSTEMS:
        parts = [environment.get(variable, "") for variable in ci.run]
        if environment.get(ci.marker) and all(parts):
            attempt = environment.get(ci.attempt, "") if ci.attempt else ""
            return ChosenKey(_written(ci.name, *parts, attempt or "1", job_name), ci.name)
    return ChosenKey(random(), "random")


def _written(*parts: str) -> str:
    """Printable and without blanks; what would be too long becomes a hash, so that no run is mistaken for another."""
    text = ":".join(re.sub(r"[^\x21-\x7e]", "-", part) for part in parts)
    return text if len(text) <= KEY_CHARACTERS else f"{parts[0]}:{hashlib.sha256(text.encode()).hexdigest()}"
