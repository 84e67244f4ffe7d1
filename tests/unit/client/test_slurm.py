"""Slurm's words: each option becomes what it means, and none is passed over."""

import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from tessera.client.commands.slurm_words.squeue import PARTITIONS, node_state, partitions, queue_columns
from tessera.client.outcomes import Failure, Mistaken, Refused
from tessera.client.slurm import values
from tessera.client.slurm.listing import words
from tessera.client.slurm.scripts import pods
from tessera.client.slurm.scripts.against import Against
from tessera.client.slurm.scripts.jobs import file_of, job_of
from tessera.client.slurm.scripts.options import OPTIONS, split_words
from tessera.client.slurm.scripts.script import read_script
from tessera.client.slurm.updating import read_update
from tessera.client.views.rendering import COLUMNS, table
from tessera_schemas.commands import ResizePods, UpdateJob
from tessera_schemas.reasons import Code, PublicReason
from tessera_schemas.views import JobView, NodeView, QueueView
from tessera_schemas.work.arrays import Dependency
from tessera_schemas.work.placement import Placement
from tests.unit.client.slurm_builders import HERE, NOON, job, read, run_as, script, spec_of, wrong

NOW = 1_760_000_000_000
MOMENT = datetime.fromtimestamp(NOW / 1000).astimezone()
GIB = 2**30


def test_a_script_becomes_a_job_whose_pods_run_it() -> None:
    spec = job("--job-name=Llama_70b", "--partition=research", "--gres=gpu:h100:8", "--mem 64G", "-c 4")
    (role,) = spec.roles
    assert (spec.name, spec.queue) == ("Llama_70b", "research")
    assert (role.replicas, role.resources.gpus, role.gpu_models) == (1, 8, ("h100",))
    assert (role.resources.memory_bytes, role.resources.cpu_milli) == (64 * GIB, 4000)
    assert role.template.command[:2] == ("/bin/bash", "-c")
    assert role.template.command[2].endswith("python train.py\n")


def test_a_script_may_ask_for_nodes_of_its_own() -> None:
    assert [job(*options).roles[0].exclusive for options in (("--exclusive",), ("--gpus=8",))] == [True, False]
    with pytest.raises(Mistaken, match="2 tasks of a node are pods here"):
        job("--exclusive", "--ntasks-per-node=2")


def test_generic_resources_go_to_admission_by_their_names() -> None:
    (role,) = job("--gres=gpu:a100:2,nic:4,fpga").roles
    assert (role.resources.gpus, role.gpu_models) == (2, ("a100",))
    assert role.resources.gres == {"gpu:a100": 2, "nic": 4, "fpga": 1}
    assert job("--gres=nic:4", "--ntasks-per-node=2").roles[0].resources.gres == {"nic": 2}
    assert job("-N 2 --gpus=a100:4").roles[0].resources.gres == {"gpu:a100": 2}
    assert job("--gres=gpu:4").roles[0].resources.gres == {"gpu": 4}


def test_all_that_nothing_honours_is_refused_at_once_with_a_way_out() -> None:
    with pytest.raises(Refused) as raised:
        job("--switches=1 --nice=5", "-M west", "--turbo", line="--licenses=matlab --mem=lots --time=soon")
    said = [(reason.code, reason.field) for reason in raised.value.reasons]
    assert said == [
        (Code.NOT_SUPPORTED_YET, "line 2: --switches"),
        (Code.NOT_SUPPORTED_YET, "line 2: --nice"),
        (Code.NOT_SUPPORTED_YET, "line 3: --clusters"),
        (Code.UNKNOWN_FIELD, "line 4: --turbo"),
        (Code.NOT_SUPPORTED_YET, "--licenses"),
        (Code.INVALID_FIELD, "--mem"),
        (Code.INVALID_FIELD, "--time"),
    ]
    unhonoured = [reason for reason in raised.value.reasons if reason.code != Code.INVALID_FIELD]
    assert all(f"or say --ignore {reason.field.rpartition('--')[2]}" in reason.detail for reason in unhonoured)


def test_what_changes_nothing_of_a_job_is_passed_over_with_a_note_by_its_name_and_line() -> None:
    made = read_script("#!/bin/sh\n#SBATCH --mail-type=END --comment=x\n#SBATCH --hint=nomultithread\n", "train.sh")
    assert (made.against, made.options) == ((), {})
    assert [note.partition(" is passed over: ")[0] for note in made.notes] == [
        "train.sh:2: --mail-type",
        "train.sh:2: --comment",
        "train.sh:3: --hint",
    ]
    assert "webhook" in made.notes[0]
    assert read_script("#!/bin/sh\n", "t", said=[("wait-all-nodes", "1")]).notes[0].startswith("t: --wait-all-nodes")


def test_an_option_may_be_cut_short_as_far_as_it_begins_no_other() -> None:
    made = job("--err=%x.err --gpus-per-n=4 --cpus-per-t 3", line="--part=large")
    assert (made.queue, made.roles[0].resources.gpus, made.roles[0].resources.cpu_milli) == ("large", 4, 3000)
    (unclear,) = read_script(script("--exclu=a"), "train.sh").against
    assert unclear.detail.startswith("write --exclusive or --exclude in full")


def test_parts_of_a_job_that_are_unlike_each_other_have_a_way_out() -> None:
    assert "train.sh:3: 'hetjob' is no option; a job of unlike parts has a role for each" in wrong("-N1", "hetjob")


def test_all_values_that_cannot_be_meant_are_told_at_once() -> None:
    sentence = wrong("--time=soon", "--mem=lots", "--gres=nic:x:y:1", "--array=x", "--dependency=a", "--export=UNSET")
    for name in ("time", "mem", "gres", "array", "dependency", "export"):
        assert f"train.sh: --{name}=" in sentence


def test_what_is_wrong_of_several_options_together_hides_nothing() -> None:
    said = wrong(
        *(
            "--nodes=2",
            "--ntasks=3",
            "--gpus=4",
            "--mem-per-gpu=lots",
            "--job-name",
            "--partition",
            "--output='x",
            "a b",
        ),
        image=None,
    )
    for text in (
        "--ntasks=3 do not lie evenly on 2 nodes",
        "4 GPUs do not divide by 3 pods",
        "--mem-per-gpu=lots: write 64G",
        "--job-name has no value",
        "--partition has no value",
        "train.sh:8: No closing quotation; mend the quotes",
        "train.sh:9: 'a' is no option",
        "no container image",
    ):
        assert said.count(text) == 1, text


def test_a_script_that_cannot_be_run_is_told_with_its_options() -> None:
    text = "#!/usr/bin/perl\n#SBATCH --gpus=x\n" + "x" * pods.SCRIPT_BYTES_MAX
    made = read_script(text, "train.pl")
    with pytest.raises(Failure) as raised:
        spec_of(made, None)
    for text in ("cannot be run by /usr/bin/perl", "put the program into the image", "--gpus=x", "no container image"):
        assert text in str(raised.value)


def test_every_option_of_the_table_has_a_meaning_or_a_way_out() -> None:
    assert [option.name for option in OPTIONS if bool(option.becomes) == bool(option.way_out)] == []
    shorts = [option.short for option in OPTIONS if option.short]
    assert len(set(shorts)) == len(shorts)


def test_a_beginning_of_an_option_is_slurms_own_and_never_one_of_tessera() -> None:
    read = {word: split_words([word])[0] for word in ("--ho", "--ignore", "--ntasks-per=4", "--tasks-p=2", "--key=a")}
    assert read == {
        "--ho": [("hold", "yes")],
        "--ignore": [("ignore", "")],
        "--ntasks-per=4": [("ntasks-per", "4")],  # ambiguous there, too
        "--tasks-p=2": [("ntasks-per-node", "2")],
        "--key=a": [("key", "a")],
    }


def test_with_a_number_of_tasks_those_of_a_node_are_at_most_so_many() -> None:
    (role,) = job("-n 2", "--ntasks-per-node=4", "--gres=gpu:8").roles
    assert (role.replicas, role.resources.gpus) == (2, 4)
    assert "--ntasks=5 do not lie evenly on 3 nodes" in wrong("-n 5", "--ntasks-per-node=2")


def test_tasks_by_their_number_and_those_of_a_node_say_how_many_nodes_there_are() -> None:
    (role,) = job("--ntasks=4", "--ntasks-per-node=2", "--gpus-per-task=1", "--mem-per-gpu=16G").roles
    assert (role.replicas, role.resources.gpus, role.resources.memory_bytes) == (4, 1, 16 << 30)


def test_each_task_of_each_node_is_a_pod_with_its_part_of_the_node() -> None:
    (role,) = job("--nodes=2", "--ntasks-per-node=4", "--gres=gpu:8", "--mem=64G").roles
    assert (role.replicas, role.resources.gpus, role.resources.memory_bytes) == (8, 2, 16 * GIB)
    (role,) = job("-N2", "--gpus=16").roles
    assert (role.replicas, role.resources.gpus) == (2, 8)
    (role,) = job("--ntasks=4", "--nodes=2", "--gres=gpu:4").roles
    assert (role.replicas, role.resources.gpus) == (4, 2)
    (role,) = job("-n 4", "--gpus-per-task=2", "--mem-per-cpu=2G", "-c 8").roles
    assert (role.replicas, role.resources.gpus, role.resources.memory_bytes) == (4, 2, 16 * GIB)
    assert job("--gpus=2", "--mem-per-gpu=10G").roles[0].resources.memory_bytes == 20 * GIB


def test_options_that_say_the_same_twice_are_one() -> None:
    twice = job("--nodes=2-2", "--ntasks-per-node=2", "--gres=gpu:h100:4", "--gpus-per-task=2", "--gpus=8").roles[0]
    assert (twice.replicas, twice.resources.gpus, twice.gpu_models) == (4, 2, ("h100",))


def test_an_option_of_the_command_line_goes_before_the_scripts() -> None:
    spec = job("--gres=gpu:8", "--job-name=a", "--mem=1G", line="--gpus 2 -J b --mem-per-cpu=3G")
    assert (spec.name, spec.roles[0].resources.gpus, spec.roles[0].resources.memory_bytes) == ("b", 2, 3 * GIB)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("90:30", 5430), ("2:00:00", 7200), ("1-12", 129_600), ("1-12:30", 131_400), ("0-0:0:9", 9)],
)
def test_a_time_is_read_as_slurm_reads_it(text: str, seconds: int) -> None:
    assert job(f"--time={text}").time_limit_seconds == seconds


@pytest.mark.parametrize("text", ["0", "UNLIMITED", "infinite", "-1"])
def test_no_limit_is_left_to_the_configuration_and_noted(text: str) -> None:
    made = read(f"--time={text}")
    against = Against(made)
    assert "time_limit_seconds" not in job_of(made, "train:1", HERE, NOON, against)
    assert against.error is None
    assert f"train.sh: --time={text}: no limit but the configuration's default" in against.notes


@pytest.mark.parametrize(
    ("options", "line", "attempts"),
    [
        (("--requeue --no-requeue",), "", 1),
        (("--no-requeue", "--requeue"), "", 3),
        (("--no-requeue",), "--requeue", 3),
        (("--requeue",), "--no-requeue", 1),
    ],
)
def test_of_requeue_and_no_requeue_the_last_one_counts(options: tuple[str, ...], line: str, attempts: int) -> None:
    assert job(*options, line=line).retry.max_attempts == attempts


@pytest.mark.parametrize(
    ("text", "profile", "models"),
    [("gpu:3g.40gb:1", "3g.40gb", ()), ("gpu:1g.10gb:1", "1g.10gb", ()), ("gpu:a100_3g.20gb:1", "3g.20gb", ("a100",))],
)
def test_a_type_that_is_an_instance_asks_for_as_many_as_it_says(
    text: str, profile: str, models: tuple[str, ...]
) -> None:
    role = job(f"--gres={text}").roles[0]
    assert (role.resources.mig_profile, role.resources.gpus, role.gpu_models) == (profile, 0, models)
    assert [job(f"--gres={text[:-1]}{n}").roles[0].resources.gpu_parts for n in (1, 3)] == [1, 3]


def test_a_job_without_gpus_has_one_cpu_unless_it_says_more() -> None:
    assert [job(*said).roles[0].resources.cpu_milli for said in ((), ("-c 4",), ("--gpus=1",))] == [1000, 4000, 0]


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("now+2hours", "2030-03-04T14:00:00+00:00"),
        ("now+90", "2030-03-04T12:01:30+00:00"),
        ("16:00", "2030-03-04T16:00:00+00:00"),
        ("08:30:15", "2030-03-05T08:30:15+00:00"),
        ("tomorrow", "2030-03-05T00:00:00+00:00"),
        ("midnight", "2030-03-05T00:00:00+00:00"),
        ("2031-01-31T12:00+00:00", "2031-01-31T12:00:00+00:00"),
    ],
)
def test_a_beginning_is_read_as_slurm_reads_it(text: str, begins: str) -> None:
    assert job(f"--begin={text}").begin_ts == int(datetime.fromisoformat(begins).timestamp() * 1000)


def test_classes_and_requeueing_are_carried_over() -> None:
    assert job("--qos=urgent").priority_class == "urgent"
    assert job("--priority=low").priority_class == "low"
    assert job("--no-requeue").retry.max_attempts == 1
    (rule,) = job("--no-requeue").retry.rules
    assert (rule.action, {"NodeLost", "PodEvicted"} <= {*rule.causes}) == ("fail", True)
    assert not {"StartTimeout", "ImageNotPulled"} & {*rule.causes}, "what did not begin is no second beginning"
    assert job("--requeue").retry.max_attempts > 1


@pytest.mark.parametrize(
    ("text", "tasks", "limit"),
    [
        ("0-9", "0-9", None),
        ("0-15%4", "0-15", 4),
        ("5,1,3", "1-5:2", None),
        ("1,3,5-7", "1-5:2,6-7", None),
        ("0-30:10,31", "0-30:10,31", None),
        ("7", "7", None),
        ("1,5", "1,5", None),
    ],
)
def test_an_array_is_the_jobs_array(text: str, tasks: str, limit: int | None) -> None:
    array = job(f"--array={text}").array
    assert array is not None
    assert (array.tasks, array.limit) == (tasks, limit)


def test_dependencies_are_conditions_that_must_all_hold() -> None:
    said = values.Said("train.sh", "dependency", "afterok:a:b_7,afterany:c,singleton")
    assert values.dependencies_of(said) == [("afterok", "a"), ("afterok", "b_7"), ("afterany", "c"), ("singleton", "")]


def test_nodes_are_chosen_by_labels_and_names() -> None:
    (role,) = job("--constraint=nvlink&zone=a", "--exclude=gpu-[1-2,07],old", "-w gpu-9").roles
    assert [(term.key, term.operator.value, term.values) for term in role.affinity] == [
        ("nvlink", "Exists", ()),
        ("zone", "In", ("a",)),
        ("kubernetes.io/hostname", "In", ("gpu-9",)),
        ("kubernetes.io/hostname", "NotIn", ("gpu-1", "gpu-2", "gpu-07", "old")),
    ]


def test_variables_are_named_and_never_the_whole_shell() -> None:
    env = job("--export=TOKEN,MODE=fast").roles[0].template.env
    assert (env["TOKEN"], env["MODE"]) == ("of this shell", "fast")
    assert "TOKEN" not in job("--export=NONE").roles[0].template.env
    assert job("--export=ALL,MODE=fast").roles[0].template.env["MODE"] == "fast"
    assert "TOKEN" not in job("--export=ALL").roles[0].template.env
    assert "ABSENT is not set here" in wrong("--export=ABSENT")


def test_notice_and_directory_are_carried_over() -> None:
    spec = job("--signal=B:TERM@120", "--chdir=/scratch/run")
    assert (spec.termination_grace_seconds, spec.roles[0].template.working_dir) == (120, "/scratch/run")


def test_a_pod_has_the_variables_that_scripts_read() -> None:
    env = job("--ntasks=4", "--gpus-per-task=2", "--array=1-9:2", "-J sweep").roles[0].template.env
    assert {name: env[f"SLURM_{name}"] for name in ("JOB_ID", "PROCID", "NTASKS", "GPUS", "ARRAY_TASK_ID")} == {
        "JOB_ID": "$(TESSERA_JOB_NUMBER)",
        "PROCID": "$(TESSERA_RANK)",
        "NTASKS": "4",
        "GPUS": "8",
        "ARRAY_TASK_ID": "$(TESSERA_ARRAY_TASK)",
    }
    assert [env[f"SLURM_ARRAY_TASK_{part}"] for part in ("COUNT", "MIN", "MAX", "STEP")] == ["5", "1", "9", "2"]


def test_lines_after_the_first_command_are_part_of_the_program() -> None:
    text = "#!/bin/sh\n# a comment\n\n#SBATCH --gpus=1\nset -e\n#SBATCH --array=1\n"
    assert read_script(text, "x").options == {"gpus": "1"}


def test_an_option_is_passed_over_only_when_told_to() -> None:
    made = read_script(script("--exclusive", "--gpus=1"), "train.sh", ["exclusive"])
    assert made.options == {"gpus": "1"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gres=gpu:3", "--ntasks-per-node=2"], "3 GPUs do not divide by 2 tasks of a node, and a task is a pod"),
        (["--gpus=3", "--nodes=2"], "3 GPUs do not divide by 2 pods"),
        (["--gres=nic:a:b:1"], "write gpu:8"),
        (["--gres=nic:3", "--ntasks-per-node=2"], "3 of nic do not divide by 2 tasks of a node"),
        (["--gres=gpu:a:1,gpu:b:1"], "a pod has GPUs of one model"),
        (["--gres=gpu:1", "--gpus=2"], "do not say the same"),
        (["--gpus-per-node=a100:1", "--gpus-per-task=h100:1"], "do not say the same"),
        (["--gres=gpu:1,tmpfs:100G"], "tmpfs:100G: write gpu:8"),
        (["--gpus=a100:1,h100:1"], "a pod has GPUs of one model"),
        (["--partition=htc,GPU"], "no queue is called so"),
        (["--partition=gpuA100x4"], "no queue is called so"),
        (["--time=soon"], "write minutes"),
        (["--nodes=4-1"], "the most is below the least"),
        (["--mem=lots"], "write 64G"),
        (["--mem-per-gpu=1G"], "it has no GPU"),
        (["--ntasks=3", "--nodes=2"], "do not lie evenly"),
        (["--ntasks=3", "--ntasks-per-node=2"], "do not lie evenly"),
        (["--array=9-1"], "each range upwards"),
        (["--array=1-3%0"], "behind %"),
        (["--array=0-99999999"], "write 0-9"),
        (["--begin=someday"], "write now+2hours"),
        (["--begin=25:00"], "write now+2hours"),
        (["--begin=16:75"], "write now+2hours"),
        (["--begin=now+9999999weeks"], "write now+2hours"),
        (["--begin=0001-01-01"], "write now+2hours"),
        (["--signal=KILL@60"], "such as TERM@120"),
        (["--constraint=[a|b]"], "zone=a|zone=b"),
        (["--exclude=GPU_1"], "names of nodes"),
        (["--exclude=gpu-[1-2-3]"], "names of nodes"),
        (["--exclude=gpu-[1-]"], "names of nodes"),
        (["--nodelist=gpu-[3-1]"], "each range upwards"),
        (["--job-name"], "has no value"),
        (["--job-name='x"], "mend the quotes"),
        (["gpus=1"], "is no option"),
    ],
)
def test_a_value_that_cannot_be_meant_is_a_sentence_that_says_where(options: list[str], said: str) -> None:
    sentence = wrong(*options)
    assert said in sentence
    assert sentence.startswith("train.sh")


@pytest.mark.parametrize(
    ("text", "said"),
    [("afterok:a?afterok:b", "joined by ?"), ("afterok:a+5", "a delay"), ("afterok", "write"), ("expand:a", "write")],
)
def test_a_dependency_that_is_not_there_says_the_way_out(text: str, said: str) -> None:
    with pytest.raises(Failure, match=said.replace("?", "[?]")):
        values.dependencies_of(values.Said("train.sh", "dependency", text))


def test_without_an_image_or_an_interpreter_there_is_no_job() -> None:
    assert "no container image" in wrong(image=None)
    assert job("--container-image=mine:2", image=None).roles[0].template.image == "mine:2"
    for first in ("echo hello", "#!/usr/bin/perl"):
        assert len(pods.command_of(f"{first}\n", "x.sh").mistakes) == 1
    assert pods.command_of("#!/usr/bin/env python3\nprint()\n", "x", ("a",)).words == [
        "python3",
        "-c",
        "#!/usr/bin/env python3\nprint()\n",
        "a",
    ]
    (mistake,) = pods.command_of("#!/bin/sh\n" + "x" * pods.SCRIPT_BYTES_MAX, "x").mistakes
    assert "put the program into the image" in mistake


def test_mounts_of_pyxis_are_mapped_volumes_and_what_cannot_be_meant_is_told() -> None:
    volumes = job("--container-mounts=/data/set:/mnt:ro,/scratch/me,/home/me:/root:rbind+rw").roles[0].template.volumes
    said = [(volume.kind, volume.path, volume.mount_path, volume.read_only) for volume in volumes]
    assert said == [
        ("mapped", "/data/set", "/mnt", True),
        ("mapped", "/scratch/me", "/scratch/me", False),
        ("mapped", "/home/me", "/root", False),
    ]
    assert "--container-mounts=data:/mnt: write SRC:DST with whole paths" in wrong("--container-mounts=data:/mnt")
    assert "x-create=dir: no such flag; there are ro" in wrong("--container-mounts=/data:/mnt:x-create=dir")
    assert job().roles[0].template.volumes == ()


def test_srun_in_a_script_runs_in_the_pods_of_its_ranks() -> None:
    assert run_as(1, "srun --label -N 2 echo rank $SLURM_PROCID of $SLURM_NTASKS") == "rank 1 of 2\n"
    assert [run_as(rank, "srun -n1 echo one") for rank in (0, 1)] == ["one\n", ""]
    assert [run_as(rank, "srun --ntasks 1 -- echo one") for rank in (0, 1)] == ["one\n", ""]


def run_in_shell(directory: Path, words: str, tasks: int = 2) -> subprocess.CompletedProcess[str]:
    """What the shell of `salloc` prints, where only `directory` may be written and is on no path."""
    looked_for = pods.SHELL_WITH_SRUN.replace("/usr/local/bin", "/proc/none").replace("/tmp/tessera", str(directory))
    command = ["/bin/sh", "-c", looked_for, pods.SRUN_IN_A_SHELL, "/bin/sh", "-c", words]
    env = {"PATH": "/usr/bin:/bin", "SLURM_NTASKS": str(tasks), "SLURM_JOB_ID": "j" * 20, "SLURM_PROCID": "0"}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_srun_in_the_shell_of_one_pod_runs_there(tmp_path: Path) -> None:
    done = run_in_shell(tmp_path, "srun --pty echo one && srun -n1 echo two", tasks=1)
    assert (done.returncode, done.stdout, done.stderr) == (0, "one\ntwo\n", "")
    assert run_in_shell(tmp_path, "srun -n 1 false").returncode == 1


def test_srun_in_the_shell_of_a_gang_says_how_all_pods_are_reached(tmp_path: Path) -> None:
    done = run_in_shell(tmp_path, "srun echo all")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"tessera srun --jobid={'j' * 20} COMMAND" in done.stderr


def test_scontrol_in_a_script_names_the_hosts_of_its_pods() -> None:
    hosts = run_as(0, 'for host in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do srun echo $host; done').split()
    assert hosts == [f"{'j' * 20}-1-{rank}.run-{'j' * 20}-1" for rank in range(2)]


def test_a_script_has_its_arguments_and_its_place_in_the_array() -> None:
    assert run_as(0, 'srun echo "$1 $2 $SLURM_ARRAY_TASK_ID"', "x", "y") == "x y 4\n"


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("%A_%a.out", "jobid_7.out"),
        ("%j.%x.%u", "jobid_7.train.ann"),
        ("log-%4a-%t", "log-0007-2"),
        ("100%%", "100%"),
        ("plain", "plain"),
    ],
)
def test_a_log_file_is_named_as_slurm_names_it(pattern: str, name: str) -> None:
    assert file_of(pattern, "jobid", "train", "ann", task=7, rank=2) == name


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
    bounded = partitions([QueueView(name="short", pool="b", time_limit_max_seconds=90_000)], nodes)
    assert table(PARTITIONS, bounded)[1].split() == ["short", "up", "1-01:00:00", "1", "idle", "other"]


def test_a_nodes_state_is_slurms_word_for_it() -> None:
    assert node_state(node("a", 1000, 0)) == "mix"
    assert node_state(node("a", 500)) == "mix"
    assert node_state(node("a", 0, drained=True)) == "drng"
    assert node_state(node("a", 1000, drained=True)) == "drain"
    assert node_state(node("a", 1000, ready=False)) == "down"
    cordoned = node("a", 1000, ready=False).model_copy(update={"cordoned": True})
    assert node_state(cordoned) == "drain"
    assert node_state(cordoned.model_copy(update={"gpu_free": (0,)})) == "drng"


@pytest.mark.parametrize("wide", ["n" * 253, "宽" * 60])
def test_slurms_tables_fit_80_columns_whatever_they_hold(wide: str) -> None:
    long = view(queue=wide, name=wide, tenant=wide, placements=(Placement(0, "worker", wide, (0,), 1000),))
    rows = partitions([QueueView(name=wide, pool="default", stop_policy="hold")], [node(wide, 0)])
    for lines in (table(queue_columns(NOW), [long]), table(PARTITIONS, rows)):
        assert max(map(cell_len, lines)) <= COLUMNS


def test_tasks_are_named_by_ranges_as_slurm_names_them() -> None:
    named = words.each_named(["7_[3-4]", "7_[1,6-9:2%4]", "train"])
    assert named == ["7_3", "7_4", "7_1", "7_6", "7_8", "train"]
    with pytest.raises(Failure, match="a range goes up"):
        words.each_named(["7_[4-3]"])


def test_an_update_changes_what_a_job_may_be_given_after_its_submit() -> None:
    update = read_update(["JobId=train_[1,2],b", "Partition=large", "QOS=high", "priority=0"], MOMENT)
    assert update.jobs == ("train_[1,2]", "b")
    kinds = [command.kind for command in update.commands("a" * 20, {})]  # type: ignore[attr-defined]
    assert kinds == ["hold_job", "move_job", "set_priority"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("JobId=7 TimeLimit=+30", "TimeLimit=\\+30: say the whole time limit"),
        ("JobId=7 TimeLimit=soon StartTime=never", "TimeLimit=soon: write minutes.*StartTime=never: write now"),
        ("JobId=7 Dependency=later:1 JobName=", "Dependency=later:1: write afterok.*JobName=: write a name"),
        ("JobId=7 TimeLimit=5 Partition=large", "say one, then the other"),
        ("JobId=7 Priority=100", "QOS=CLASS"),
        ("JobId=7 NumNodes=2", "numnodes: cannot be changed"),
        ("JobId=7 ArrayTaskThrottle=2", "by `tessera scale JOB N`"),
        ("JobId=7 NumTasks=2", "by `tessera scale JOB N`"),
        ("JobId=7 MinMemoryCPU=2G NumCPUs=8", "MinMemoryNode=SIZE.*MinCPUsNode=COUNT"),
        ("JobId=7 MinMemoryNode=much MinCPUsNode=0", "MinCPUsNode=0: write one number.*MinMemoryNode=much: write 64G"),
        ("JobId=7", "no change is named"),
        ("Partition=large", "name a job: JobId=JOB"),
        ("JobId=7 large", "large: write NAME=VALUE"),
    ],
)
def test_what_no_job_may_be_given_after_its_submit_is_refused_by_name(asked: str, said: str) -> None:
    with pytest.raises(Failure, match=said):
        read_update(asked.split(), MOMENT)


@pytest.mark.parametrize(
    ("asked", "changes"),
    [
        ("TimeLimit=90", {"time_limit_seconds": 5400}),
        ("TimeLimit=1-12:00:00", {"time_limit_seconds": 129_600}),
        ("timelimit=UNLIMITED", {"time_limit_seconds": 0}),
        ("StartTime=2030-01-31T12:00:00+00:00", {"begin_ts": 1_896_091_200_000}),
        ("EligibleTime=now", {"begin_ts": int(MOMENT.timestamp()) * 1000}),
        ("JobName=new", {"name": "new"}),
        ("Name=new TimeLimit=1", {"name": "new", "time_limit_seconds": 60}),
        ("Dependency=", {"after": ()}),
        (
            "Dependency=afterok:8,singleton",
            {"after": (Dependency(condition="afterok", job="b" * 20), Dependency(condition="singleton"))},
        ),
    ],
)
def test_an_update_reads_fields_of_the_spec_as_sbatch_does(asked: str, changes: dict[str, object]) -> None:
    update = read_update(["JobId=7", *asked.split()], MOMENT)
    (command,) = update.commands("a" * 20, {"8": "b" * 20})
    assert isinstance(command, UpdateJob)
    assert command.given == changes


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        ("MinCPUsNode=8 MinMemoryNode=16G", {"cpu_milli": 8000, "memory_bytes": 16 * 2**30}),
        ("minmemorynode=512", {"memory_bytes": 512 * 2**20}),
    ],
)
def test_an_update_gives_nodes_of_a_job_that_runs_another_size_in_place(asked: str, size: dict[str, int]) -> None:
    (command,) = read_update(["JobId=7", *asked.split()], MOMENT).commands("a" * 20, {})
    assert isinstance(command, ResizePods)
    assert command.model_dump(include={"cpu_milli", "memory_bytes"}, exclude_none=True) == size


def test_names_of_nodes_are_folded_as_slurm_folds_them() -> None:
    assert words.node_list(["gpu-3", "gpu-1", "gpu-2", "gpu-7", "login"]) == "gpu-[1-3,7],login"
    assert words.node_list(["n09", "n10", "n11"]) == "n[09-11]"
    assert words.node_list(["gpu-1", "gpu-1"]) == "gpu-1"
    assert words.node_list([]) == ""
