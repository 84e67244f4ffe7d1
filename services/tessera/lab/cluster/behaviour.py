"""How a simulated program behaves, read from its pod's annotations."""

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from tessera.kernel.ports import JsonObject
from tessera.lab.cluster.capacity import AdmissionError
from tessera_schemas.labels import SIMULATE_PREFIX

RUN_SECONDS = f"{SIMULATE_PREFIX}seconds"
EXIT_CODE = f"{SIMULATE_PREFIX}exit-code"
TERM_MS = f"{SIMULATE_PREFIX}term-ms"
KILLED, TERMINATED = 137, 143
_DEFAULT_GRACE_SECONDS = 30
_TEN_YEARS_MS = 10 * 365 * 86_400_000


@dataclass(frozen=True, slots=True)
class Ending:
    """How a pod's program ended: phase, the pod's reason (often ""), and the exit code."""

    phase: str
    reason: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Milliseconds from start to the end that comes by itself, and from SIGTERM to the end that it causes."""

    run_ms: int
    ending: Ending
    term_ms: int

    def stopped(self, grace_ms: int) -> tuple[int, Ending]:
        """After SIGTERM: how long it still runs, and its end. Out of grace, it is killed."""
        code = TERMINATED if self.term_ms <= grace_ms else KILLED
        return min(self.term_ms, grace_ms), Ending("Failed", "", code)


def behaviour_of(pod: JsonObject) -> Behaviour:
    """Raises AdmissionError for annotations that cannot be read."""
    notes = pod["metadata"].get("annotations") or {}
    try:
        run_ms = min(max(int(Decimal(notes.get(RUN_SECONDS, "1")) * 1000), 0), _TEN_YEARS_MS)
        exit_code = int(notes.get(EXIT_CODE, "0"))
        term_ms = max(int(notes.get(TERM_MS, "20")), 0)
        deadline = pod["spec"].get("activeDeadlineSeconds")
        if deadline is not None and int(deadline) * 1000 < run_ms:
            return Behaviour(int(deadline) * 1000, Ending("Failed", "DeadlineExceeded", TERMINATED), term_ms)
    except (ValueError, TypeError, InvalidOperation, OverflowError) as error:
        raise AdmissionError(f"the pod's simulated behaviour cannot be read: {error}") from error
    return Behaviour(run_ms, Ending("Failed" if exit_code else "Succeeded", "", exit_code), term_ms)


def grace_ms_of(pod: JsonObject) -> int:
    """The grace that a deletion gives this pod, or would give it."""
    asked = pod["metadata"].get("deletionGracePeriodSeconds")
    seconds = pod["spec"].get("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS) if asked is None else asked
    return int(seconds) * 1000
