"""Slurm's words: each option becomes what it means, and none is passed over."""

from typing import Any

import pytest
from rich.cells import cell_len

from tessera.client import files, slurm
from tessera.client.commands.slurm import PARTITIONS, node_state, partitions, queue_columns, warnings
from tessera.client.outcomes import Failure, Refused
from tessera.client.rendering import COLUMNS, table
from tessera_schemas.job import JobSpec
from tessera_schemas.placement import Placement
from tessera_schemas.reasons import Code, PublicReason
from tessera_schemas.views import JobView, NodeView, QueueView

NOW = 1_760_000_000_000
GIB = 2**30


def script(*options: str, body: str = "python train.py") -> str:
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {option}" for option in options), "", body, ""])


def job(*options: str, image: str | None = "train:1") -> JobSpec:
    read = slurm.read_script(script(*options), "train.sh")
    spec = files.job_spec(slurm.job_of(read, "train.sh", image, "train"), "train.sh")
    return JobSpec.model_validate({"queue": "default", **spec})


def refused(*options: str) -> list[tuple[str, str]]:
    with pytest.raises(Refused) as raised:
        slurm.read_script(script(*options), "train.sh")
    return [(reason.code, reason.field) for reason in raised.value.reasons]


def wrong(*options: str, **more: Any) -> str:
    with pytest.raises(Failure) as raised:
        job(*options, **more)
    return str(raised.value)


def test_a_script_becomes_a_job_whose_pods_run_it() -> None:
    spec = job("--job-name=Llama_70b", "--partition=research", "--gres=gpu:h100:8", "--mem 64G", "-c 4")
    (role,) = spec.roles
    assert (spec.name, spec.queue) == ("llama-70b", "research")
    assert (role.replicas, role.resources.gpus, role.gpu_models) == (1, 8, ("h100",))
    assert (role.resources.memory_bytes, role.resources.cpu_milli) == (64 * GIB, 4000)
    assert role.template.command[:2] == ("/bin/bash", "-c")
    assert role.template.command[2].endswith("python train.py\n")


def test_a_flag_that_is_not_known_hides_no_other_refusal() -> None:
    fields = [field for _, field in refused("--exclusive", "--array=1-9", "--exclusive --mail-user=me")]
    assert fields == ["line 2: --exclusive", "line 3: --array", "line 4: --exclusive", "line 4: --mail-user"]


def test_each_task_of_each_node_is_a_pod_with_its_part_of_the_node() -> None:
    (role,) = job("--nodes=2", "--ntasks-per-node=4", "--gres=gpu:8", "--mem=64G").roles
    assert (role.replicas, role.resources.gpus, role.resources.memory_bytes) == (8, 2, 16 * GIB)
    (role,) = job("-N2", "--gpus=16").roles
    assert (role.replicas, role.resources.gpus) == (2, 8)
    (role,) = job("--ntasks=4", "--nodes=2", "--gres=gpu:4").roles
    assert (role.replicas, role.resources.gpus) == (4, 2)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("90:30", 5430), ("2:00:00", 7200), ("1-12", 129_600), ("1-12:30", 131_400), ("0-0:0:9", 9)],
)
def test_a_time_is_read_as_slurm_reads_it(text: str, seconds: int) -> None:
    assert job(f"--time={text}").time_limit_seconds == seconds


def test_classes_and_requeueing_are_carried_over() -> None:
    assert job("--qos=urgent").priority_class == "urgent"
    assert job("--priority=low").priority_class == "low"
    assert job("--no-requeue").retry.max_attempts == 1
    assert job("--requeue").retry.max_attempts > 1


def test_every_option_that_nothing_honours_is_named_with_its_line() -> None:
    assert refused("--array=1-10", "--job-name=x", "--mail-type=END", "-o log.txt") == [
        (Code.NOT_SUPPORTED_YET, "line 2: --array"),
        (Code.UNKNOWN_FIELD, "line 4: --mail-type"),
        (Code.NOT_SUPPORTED_YET, "line 5: --output"),
    ]


def test_an_option_is_passed_over_only_when_told_to() -> None:
    read = slurm.read_script(script("--output=log", "--gpus=1"), "train.sh", ["output"])
    assert read.options == {"gpus": "1"}


def test_lines_after_the_first_command_are_part_of_the_program() -> None:
    text = "#!/bin/sh\n# a comment\n\n#SBATCH --gpus=1\nset -e\n#SBATCH --array=1\n"
    assert slurm.read_script(text, "x").options == {"gpus": "1"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gres=gpu:3", "--ntasks-per-node=2"], "3 GPUs do not divide by 2 tasks of a node"),
        (["--gpus=3", "--nodes=2"], "3 GPUs do not divide by 2 pods"),
        (["--gres=nic:1"], "write gpu:8"),
        (["--gres=gpu:1", "--gpus=1"], "say one of them"),
        (["--time=soon"], "write minutes"),
        (["--time=0"], "no time at all"),
        (["--nodes=1-4"], "write one number"),
        (["--mem=lots"], "write 64G"),
        (["--ntasks=3", "--nodes=2"], "do not lie evenly"),
        (["--job-name"], "has no value"),
        (["--job-name='x"], "mend the quotes"),
        (["gpus=1"], "is no option"),
    ],
)
def test_a_value_that_cannot_be_meant_is_a_sentence_that_says_where(options: list[str], said: str) -> None:
    sentence = wrong(*options)
    assert said in sentence
    assert sentence.startswith("train.sh")


def test_without_an_image_or_an_interpreter_there_is_no_job() -> None:
    assert "no container image" in wrong(image=None)
    assert job("--container-image=mine:2", image=None).roles[0].template.image == "mine:2"
    for first in ("echo hello", "#!/usr/bin/perl"):
        with pytest.raises(Failure):
            slurm.command_of(f"{first}\n", "x.sh")
    assert slurm.command_of("#!/usr/bin/env python3\nprint()\n", "x")[:2] == ["python3", "-c"]
    with pytest.raises(Failure, match="put the program into the image"):
        slurm.command_of("#!/bin/sh\n" + "x" * slurm.SCRIPT_CHARACTERS, "x")


def test_what_a_script_counts_on_and_is_not_there_is_said() -> None:
    assert len(warnings("srun python train.py --rank $SLURM_PROCID")) == 2
    assert warnings("python train.py") == []


def view(phase: str = "running", **more: Any) -> JobView:
    base = {"job_id": "a" * 20, "tenant": "lab", "queue": "research", "name": "train", "key": "k", "priority": 0}
    return JobView.model_validate(
        {**base, "phase": phase, "attempt": 1, "pods": 2, "gpu_milli": 8000, "submitted_ts": NOW - 10_000, **more}
    )


def test_squeue_has_the_columns_that_slurm_users_expect() -> None:
    placed = tuple(Placement(rank, "worker", f"gpu-{rank + 1}", (0,), 1000) for rank in range(3))
    running = view(started_ts=NOW - 3_661_000, placements=placed)
    waiting = view("queued", reason=PublicReason(code="NoFit"))
    title, first, second = table(queue_columns(NOW), [running, waiting], gap=1)
    assert title.split() == ["JOBID", "PARTITION", "NAME", "USER", "ST", "TIME", "NODES", "NODELIST(REASON)"]
    assert first.split() == ["a" * 20, "research", "train", "lab", "R", "1:01:01", "3", "gpu-[1-3]"]
    assert second.split()[4:] == ["PD", "0:00", "2", "(Resources)"]


def node(name: str, *free: int, ready: bool = True, drained: bool = False, pool: str = "default") -> NodeView:
    return NodeView(name=name, pool=pool, ready=ready, drained=drained, gpus=len(free), gpu_free=free)


def test_sinfo_groups_the_nodes_of_a_queue_by_state() -> None:
    nodes = [node("gpu-1", 1000), node("gpu-2", 1000), node("gpu-3", 0), node("other", 1000, pool="b")]
    rows = partitions([QueueView(name="research", pool="default"), QueueView(name="all", pool="x", inner=True)], nodes)
    assert table(PARTITIONS, rows)[1:] == [
        "research   up     infinite       1  alloc  gpu-3",
        "research   up     infinite       2  idle   gpu-[1-2]",
    ]


def test_a_nodes_state_is_slurms_word_for_it() -> None:
    assert node_state(node("a", 1000, 0)) == "mix"
    assert node_state(node("a", 500)) == "mix"
    assert node_state(node("a", 0, drained=True)) == "drng"
    assert node_state(node("a", 1000, drained=True)) == "drain"
    assert node_state(node("a", 1000, ready=False)) == "down"


@pytest.mark.parametrize("wide", ["n" * 253, "宽" * 60])
def test_slurms_tables_fit_80_columns_whatever_they_hold(wide: str) -> None:
    long = view(queue=wide, name=wide, tenant=wide, placements=(Placement(0, "worker", wide, (0,), 1000),))
    rows = partitions([QueueView(name=wide, pool="default", stop_policy="hold")], [node(wide, 0)])
    for lines in (table(queue_columns(NOW), [long]), table(PARTITIONS, rows)):
        assert max(map(cell_len, lines)) <= COLUMNS


def test_names_of_nodes_are_folded_as_slurm_folds_them() -> None:
    assert slurm.node_list(["gpu-3", "gpu-1", "gpu-2", "gpu-7", "login"]) == "gpu-[1-3,7],login"
    assert slurm.node_list(["n09", "n10", "n11"]) == "n[09-11]"
    assert slurm.node_list(["gpu-1", "gpu-1"]) == "gpu-1"
    assert slurm.node_list([]) == ""
