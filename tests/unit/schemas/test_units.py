"""Numbers of reasons as people read them: never raw milliseconds, bytes or thousandths."""

import pytest

from tessera_schemas.reasons import Code, Reason
from tessera_schemas.text.units import format_number

TS = 1_763_836_558_000
QUOTA = "queues.research.gpu_milli of h100"


@pytest.mark.parametrize(
    ("name", "value", "about", "said"),
    [
        ("from_ts", TS, "", "from 2025-11-22 18:35:58 UTC"),
        ("expected_end_ts", TS, "", "expected end 2025-11-22 18:35:58 UTC"),
        ("from_ts", 2**53, "", "from an unknown time"),
        ("waited_ms", 61_000, "", "waited time 1m1s"),
        ("seconds", 600, "", "time 10m"),
        ("seconds_left", 5, "", "time left 5s"),
        ("give_up_seconds", 1_209_600, "", "give up time 14d"),
        ("gained_gpu_seconds", 7200, "", "gained gpu time 2h"),
        ("bytes", 131_073, "", "size 128Ki"),
        ("bytes_max", 131_072, "", "max 128Ki"),
        ("memory_bytes", 16 * 2**30, "", "memory 16Gi"),
        ("wanted_gpu_milli", 8500, "", "wanted gpu 8.5"),
        ("cpu_milli", -500, "", "cpu -0.5"),
        ("wanted", 16_000, QUOTA, "wanted 16"),
        ("nominal_quota", 2**34, "queues.q.memory_bytes", "nominal quota 16Gi"),
        ("wanted", 3, "limits.jobs", "wanted 3"),
        ("pods_wanted", 12_000, QUOTA, "pods wanted 12000"),
        ("may_be_taken", 3, "", "runs that may be taken 3"),
        ("runs_kept_by_EvictionBudgetSpent", 2, "", "runs not preemptible, too young or evicted too often 2"),
    ],
)
def test_a_number_is_said_in_the_unit_that_its_name_or_its_quota_has(
    name: str, value: int, about: str, said: str
) -> None:
    assert format_number(name, value, about) == said


def test_a_reason_says_its_numbers_so() -> None:
    reason = Reason(code=Code.NODE_BACKED_OFF, field="nodes.a", numbers={"until_ts": TS, "times": 2, "seconds": 5400})
    assert reason.sentence().endswith("(time 1h30m, times 2, until 2025-11-22 18:35:58 UTC)")


def test_no_reason_says_when_a_job_was_expected_to_start_since_its_expected_start_does() -> None:
    reason = Reason(code=Code.RESERVED, field="roles.worker", numbers={"from_ts": TS, "seconds": 5400, "pods": 2})
    assert reason.sentence().endswith("runs there are expected to end (pods 2)")
