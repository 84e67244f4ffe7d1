"""Batch scripts that people wrote for Slurm: what they say reaches the program as it was written, or is refused."""

import pytest

from tests.unit.client.slurm_builders import job, read, run_as, run_pod, spec_of, wrong

DOLLARS = """\
port=$((20000 + $$ % 10000)); tmp=/tmp/work.$$
[ "$port" -ge 20000 ] && [ "$tmp" = "/tmp/work.$(sh -c 'echo $PPID')" ] && echo same
echo "cost: 5$$é in $(echo SLURM_JOB_ID) $(printf %s "$SLURM_JOB_ID")" | sed "s/5$$/5/"
echo '$(SLURM_JOB_ID) $$'"""


def test_a_script_runs_as_it_was_written_and_not_as_kubernetes_reads_it() -> None:
    said = run_as(0, DOLLARS, tasks=1).splitlines()
    assert said == ["same", "cost: 5é in SLURM_JOB_ID 17", "$(SLURM_JOB_ID) $$"]


def test_arguments_names_and_exported_values_are_literal_too() -> None:
    assert run_as(0, 'echo "$1"', "$(SLURM_JOB_ID)$$", tasks=1) == "$(SLURM_JOB_ID)$$\n"
    made = job("--export=A=$(SLURM_JOB_ID)$$", "-J a$$", body='echo "$A"')
    assert run_pod(made).stdout == "$(SLURM_JOB_ID)$$\n"


def test_an_image_that_a_comment_cuts_is_refused_with_the_way_out() -> None:
    said = wrong("--container-image=registry.example.com#nvidia/pytorch:22.02-py3", "--gres=gpu:1", image=None)
    assert said == (
        "train.sh:2: --container-image=registry.example.com#: # begins a comment, which cuts the image; write "
        "--container-image=registry.example.com/IMAGE"
    )


@pytest.mark.parametrize(
    "option",
    [
        r"--container-image=host.example:5000\#nvidia/pytorch:22",
        '--container-image="host.example:5000#nvidia/pytorch:22"  # of pyxis',
        "--container-image 'host.example:5000#nvidia/pytorch:22' --gpus=1",
        "--container-image=docker://host.example:5000/nvidia/pytorch:22 --gpus=1#2",
    ],
)
def test_an_image_is_named_as_pyxis_names_it(option: str) -> None:
    assert job(option).roles[0].template.image == "host.example:5000/nvidia/pytorch:22"


@pytest.mark.parametrize(
    ("image", "said"),
    [("me@host#image", "secrets of the namespace"), ("/images/a.sqsh", "push it"), ("./a.sqsh", "push it")],
)
def test_an_image_that_no_registry_has_is_refused_with_the_way_out(image: str, said: str) -> None:
    assert said in wrong(f"--container-image='{image}'")


def test_a_script_with_line_breaks_of_windows_is_refused_as_slurm_does() -> None:
    made = read("--gpus=1", body="if true; then\r\n echo hi\r\nfi")
    assert "sed -i" in str(made.mistakes)


def test_the_one_host_of_a_job_of_one_pod_is_its_own() -> None:
    for name in ("hostnames", "hostname"):
        ask = f'scontrol show {name} "$SLURM_JOB_NODELIST" | head -n 1'
        assert run_as(0, ask, tasks=1) == f"{'j' * 20}-1-0\n"
    assert run_as(0, "scontrol show hostnames", tasks=1) == f"{'j' * 20}-1-0\n"
    assert run_as(0, "scontrol show hostnames gpu-[1-2] || echo failed", tasks=1) == "failed\n"


def test_a_script_keeps_its_lines() -> None:
    assert "echo a\n" in spec_of(read(body="echo a\necho b")).roles[0].template.command[2]
