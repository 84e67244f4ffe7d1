"""What steps cost when there are many, and what a task can do to its runner: memory, descriptors, processes stay."""

from pathlib import Path

from tests.steps.pods import Pods, resident_kibibytes, wait_for

WARM, MANY = 50, 300
GROWTH_KIB = 4096  # memory comes in huge pages of 2 MiB where the kernel gives them to all


def held(run: Pods) -> list[tuple[int, int]]:
    """Descriptors and KiB of each runner."""
    return [(len(list(Path(f"/proc/{pod.pid}/fd").iterdir())), resident_kibibytes(pod.pid)) for pod in run.pods]


def test_hundreds_of_steps_one_after_another_leave_nothing_behind(pods):
    steps = "for n in $(seq {count}); do srun -n2 true || exit 1; done; touch {mark}; until [ -e go{mark} ]; do :; done"
    script = f"{steps.format(count=WARM, mark='warm')}; {steps.format(count=MANY, mark='many')}".replace(
        "do :", "do sleep 0.05"
    )
    with pods(2, script) as run:
        seen = []
        for mark in ("warm", "many"):
            wait_for(run.path(mark).exists, f"the steps until {mark}")
            wait_for(lambda: len(run.tasks()) <= 2, "the end of every task")  # the script and its sleep
            seen.append(held(run))
            run.path(f"go{mark}").touch()
        assert run.ended()[0] == 0
    for (files, kibibytes), (files_then, kibibytes_then) in zip(*seen, strict=True):
        assert files_then <= files
        assert kibibytes_then < kibibytes + GROWTH_KIB


def test_a_gigabyte_without_a_newline_is_passed_on_and_fills_no_memory(pods):
    script = """
srun -n1 -N1 -w 127.88.0.1 head -c 1000000000 /dev/zero | (wc -c; touch counted; until [ -e go ]; do sleep 0.05; done)
"""
    with pods(2, script) as run:
        wait_for(lambda: run.path("counted").exists(), "the last byte")
        peaks = [Path(f"/proc/{pod.pid}/status").read_text().partition("VmHWM:")[2].split()[0] for pod in run.pods]
        run.path("go").touch()
        _, out, _ = run.ended()
    assert out == "1000000000\n"
    assert max(map(int, peaks)) < 32_768


def test_a_task_that_closes_its_output_is_waited_for(pods):
    script = """
srun -n2 bash -c 'exec >&- 2>&-; touch closed$SLURM_PROCID; until [ -e go ]; do sleep 0.01; done; exit 5' &
until [ -e closed0 ] && [ -e closed1 ]; do sleep 0.01; done
srun -n2 --overlap echo beside; touch go
wait $!; echo $?
"""
    with pods(2, script) as run:
        _, out, _ = run.ended()
    assert out.splitlines() == ["beside", "beside", "5"]


def test_who_reads_no_more_ends_the_step(pods):
    script = """
srun -n2 yes | head -n 1
srun -n2 echo after
"""
    with pods(2, script) as run:
        _, out, _ = run.ended()
    assert out.splitlines() == ["y", "after", "after"]
