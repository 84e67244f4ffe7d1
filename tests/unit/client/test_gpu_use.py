"""What is said of how much a job's GPUs worked, and the advice; nothing without evidence."""

from typing import Any

import pytest

from tessera.client.commands.shard.views import job_facts
from tessera.client.slurm.listing import fields
from tessera_schemas.views import JobView
from tessera_schemas.work.measured_use import ADVISED_FROM_MS, MeasuredUse

HOUR_MS, NOW = 3_600_000, 1_760_000_000_000
GIB = 1024


def use(
    gpus: int = 8, busy: int = 2, percent: int = 12, hours: int = 31, memory: int = 11, there: int = 80
) -> MeasuredUse:
    measured = gpus * 1000 * hours * HOUR_MS
    return MeasuredUse(
        measured_gpu_milli_ms=measured,
        worked_gpu_milli_ms=measured * percent // 100,
        gpus=gpus,
        busy_gpus=busy,
        memory_mib=memory * GIB,
        gpu_memory_mib=there * GIB,
    )


def held(gpus: int = 8, hours: int = 31) -> int:
    return gpus * 1000 * hours * HOUR_MS


PERCENT = "(12 % of the time)"
TEXTS = [
    (
        "as in the handbook",
        use(),
        held(),
        f"8 GPUs held 1d7h, 2 were used {PERCENT}; 11 of 80 GiB of memory at most",
    ),
    ("without memory", use(there=0), held(), "8 GPUs held 1d7h, 2 were used (12 % of the time)"),
    ("one of several", use(busy=1, there=0), held(), "8 GPUs held 1d7h, 1 was used (12 % of the time)"),
    ("one of one", use(gpus=1, busy=1, there=0), held(1), "1 GPU held 1d7h, it was used (12 % of the time)"),
    (
        "none of one",
        use(gpus=1, busy=0, percent=0, there=0),
        held(1),
        "1 GPU held 1d7h, it was not used (0 % of the time)",
    ),
    (
        "partly measured",
        use(hours=10, there=0),
        held(),
        "8 GPUs held 1d7h, 2 were used (12 % of the 32 % of the time that were measured)",
    ),
    ("nothing measured", MeasuredUse(), held(), ""),
]


@pytest.mark.parametrize(("found", "of", "text"), [case[1:] for case in TEXTS], ids=[case[0] for case in TEXTS])
def test_the_line_says_what_was_held_and_what_was_used(found: MeasuredUse, of: int, text: str) -> None:
    assert found.text(of) == text


FEWER = "6 of its 8 GPUs were never busy: ask for fewer (--gpus 2)."
SMALLER = "11 of 80 GiB of memory at most: a smaller GPU may do (--gpu-model)."
NONE = "None of its GPUs was busy when measured: ask for none (--gpus 0)."
ADVICE = [
    ("fewer and smaller ones", use(), held(), 1, (FEWER, SMALLER)),
    ("of several pods", use(there=0), held(), 4, (FEWER.replace("--gpus 2", "fewer --gpus, or fewer --replicas"),)),
    ("all busy, half of the memory and more", use(busy=8, memory=41), held(), 1, ()),
    ("all busy, half of the memory", use(busy=8, memory=40), held(), 1, (SMALLER.replace("11", "40"),)),
    (
        "a share of one, with a quarter more memory and time",
        use(gpus=1, busy=1),
        held(1),
        1,
        (SMALLER.replace("(--gpu-model)", "(--gpu-model), or a part of one (--gpu-milli 200, mig_profile)"),),
    ),
    ("one that works is not shared", use(gpus=1, busy=1, percent=41), held(1), 1, (SMALLER,)),
    ("memory that nobody measured", use(busy=8, there=0), held(), 1, ()),
    (
        "none was busy",
        use(busy=0, percent=0),
        held(),
        1,
        (NONE,),
    ),
    ("half of what was held is measured", use(hours=10), held(hours=20), 1, (FEWER, SMALLER)),
    ("less than half", use(hours=10), held(hours=20) + 1, 1, ()),
]


@pytest.mark.parametrize(
    ("found", "of", "pods", "said"), [case[1:] for case in ADVICE], ids=[case[0] for case in ADVICE]
)
def test_advice_is_given_on_evidence_alone(found: MeasuredUse, of: int, pods: int, said: tuple[str, ...]) -> None:
    assert found.advice(of, pods) == said


@pytest.mark.parametrize(("ms", "count"), [(ADVISED_FROM_MS, 2), (ADVISED_FROM_MS - 1, 0)])
def test_ten_minutes_have_to_be_measured(ms: int, count: int) -> None:
    short = use().model_copy(update={"measured_gpu_milli_ms": 8000 * ms, "worked_gpu_milli_ms": 0})
    assert len(short.advice(8000 * ms, 1)) == count


def view(**more: Any) -> JobView:
    base = {"job_id": "a" * 20, "tenant": "lab", "queue": "research", "name": "train", "key": "k", "priority": 0}
    base |= {
        "phase": "running",
        "attempt": 1,
        "pods": 1,
        "gpu_milli": 8000,
        "submitted_ts": NOW,
        "gpu_milli_ms": held(),
    }
    return JobView.model_validate(base | {"gpu_milli_ms": held()} | more)


def test_get_says_it_with_the_advice_and_nothing_where_nothing_was_measured() -> None:
    told = [line for line in job_facts(view(gpu_use=use().model_dump()), NOW) if line[0] in ("used", "advice")]
    assert [name for name, _ in told] == ["used", "advice", "advice"]
    assert told[0][1].startswith("8 GPUs held 1d7h, 2 were used")
    assert not {"used", "advice"} & dict(job_facts(view(), NOW)).keys()


def test_sacct_has_it_by_slurms_names_and_leaves_empty_what_nobody_measured() -> None:
    names = ("TRESUsageInAve", "TRESUsageInMax")
    rows = [view(gpu_use=use().model_dump()), view(gpu_use=use(there=0).model_dump()), view()]
    assert [[fields.FIELDS[name](row, NOW) for name in names] for row in rows] == [
        ["gres/gpuutil=12", "gres/gpumem=11264M"],
        ["gres/gpuutil=12", ""],
        ["", ""],
    ]
