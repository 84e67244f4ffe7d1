"""The queueing replay, told on a few jobs."""

import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tessera.client.commands.lab import lab
from tessera.kernel.errors import StartupError
from tessera_lab.queue.configured import config_of
from tessera_lab.queue.measures import jain_by_week, measure, offered_load
from tessera_lab.queue.policies import POLICIES
from tessera_lab.queue.replay import replay
from tessera_lab.queue.run import ReplayRequest, node_sizes, run, split
from tessera_lab.traces.philly import OCTOBER_S, TraceJob, generated_month
from tests.unit.client.first_configs import node, read, written

DAY_S = 86_400


def trace(*rows: tuple[int, int, int]) -> list[TraceJob]:
    """(submit, duration, GPUs) of one virtual cluster, in this order in the file."""
    return [TraceJob(2 + i, submit, duration, gpus, "vc") for i, (submit, duration, gpus) in enumerate(rows)]


def waits(policy: str, jobs: list[TraceJob], sizes: tuple[int, ...] = (8,)) -> list[int]:
    return replay(jobs, POLICIES[policy](sizes, ()))


BLOCKED = trace((0, 100, 6), (1, 50, 8), (2, 10, 1), (3, 5, 2))


def test_fifo_stops_at_the_first_job_that_does_not_fit() -> None:
    assert waits("fifo", BLOCKED) == [0, 99, 148, 147]


def test_skip_goes_on_behind_it() -> None:
    assert waits("skip", BLOCKED) == [0, 99, 0, 9]


def test_the_oracle_takes_the_shortest_first_and_stops_at_the_first_that_does_not_fit() -> None:
    jobs = trace((0, 100, 8), (1, 50, 8), (2, 10, 1), (3, 5, 8))
    assert waits("sjf-oracle", jobs) == [0, 114, 103, 97]


def test_a_job_of_a_node_waits_for_a_whole_node_even_if_as_many_gpus_are_free_on_two() -> None:
    jobs = trace((0, 100, 5), (0, 200, 5), (1, 10, 6))
    assert waits("fifo", jobs, (8, 8)) == [0, 0, 99]
    assert waits("fifo", jobs, (16,)) == [0, 0, 0]


def test_what_ends_at_an_instant_frees_its_gpus_for_what_arrives_then() -> None:
    assert waits("fifo", trace((0, 10, 8), (10, 5, 8))) == [0, 0]


def test_of_jobs_of_one_second_the_shorter_goes_first_under_fifo() -> None:
    assert waits("fifo", trace((0, 90, 8), (0, 10, 8))) == [10, 0]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_starts_every_job_and_never_uses_more_than_there_is(policy: str) -> None:
    jobs = trace(*[(i * 7 % 400 // 10 + i, 1 + i * i % 97, (1, 2, 4, 8, 1, 16)[i % 6]) for i in range(300)])
    jobs.sort(key=lambda job: (job.submit_s, job.line))
    waited = waits(policy, jobs, (8, 8, 8))
    changes = []
    for job, wait in zip(jobs, waited, strict=True):
        assert wait >= 0
        changes += [(job.submit_s + wait, 1, job.gpus), (job.submit_s + wait + job.duration_s, 0, -job.gpus)]
    used = 0
    for _, _, change in sorted(changes):
        used += change
        assert used <= 24


def test_expected_sees_no_duration_before_the_run_has_ended() -> None:
    """Two traces that differ only in how long the last jobs run: all that starts before they end starts alike."""
    jobs = trace(*[(i * 20, 100 + i, (1, 8, 2)[i % 3]) for i in range(60)])
    other = [*jobs[:50], *(TraceJob(j.line, j.submit_s, j.duration_s * 50, j.gpus, j.vc) for j in jobs[50:])]
    one, two = waits("expected", jobs), waits("expected", other)
    first_end = min(j.submit_s + w + j.duration_s for j, w in zip(jobs[50:], one[50:], strict=True))
    alike = [i for i, j in enumerate(jobs) if j.submit_s + one[i] < first_end]
    assert len(alike) > 30
    assert [one[i] for i in alike] == [two[i] for i in alike]


def test_expected_lets_the_jobs_go_first_whose_kind_was_short() -> None:
    history = [TraceJob(1000 + i, i, 10 if i % 2 else 5000, 1, "quick" if i % 2 else "slow") for i in range(40)]
    jobs = [
        TraceJob(2, 10_000, 100, 8, "slow"),
        TraceJob(3, 10_001, 5000, 1, "slow"),
        TraceJob(4, 10_002, 5000, 1, "slow"),
        TraceJob(5, 10_003, 10, 1, "quick"),
    ]
    assert replay(jobs, POLICIES["expected"]((8,), history)) == [0, 99, 98, 97]
    one_gpu = [*jobs[1:3], jobs[3]]
    assert replay(one_gpu, POLICIES["expected"]((1,), history)) == [0, 5009, 4998]


def test_a_gang_starves_in_a_stream_of_small_jobs_under_skip_and_not_under_expected() -> None:
    """All run equally long: after some seven runtimes of waiting a gang of eight weighs less than a new single GPU."""
    history = [TraceJob(10_000 + n, n, 100, 8 if n % 2 else 1, "vc") for n in range(80)]
    stream = trace(*((at, 100, 1) for at in range(1000, 4000, 15)))
    gang = TraceJob(2000, 1101, 100, 8, "vc")
    jobs = sorted([*stream, gang], key=lambda job: (job.submit_s, job.line))
    waited = {p: replay(jobs, POLICIES[p]((8,), history))[jobs.index(gang)] for p in ("skip", "expected")}
    assert waited["skip"] > 2900
    assert waited["expected"] < waited["skip"] / 2


def test_room_is_kept_under_the_quota_that_config_init_writes_as_without_any() -> None:
    """A job of a whole node is blocked; behind it comes a small one that would run for longer than it must wait."""
    jobs = trace((0, 100, 4), (10, 100, 8), (20, 100, 1))
    assert waits("reserve-quota", jobs) == waits("reserve", jobs) == [0, 90, 180]
    assert waits("skip-quota", jobs)[2] == 0


def test_the_quota_is_the_one_that_config_init_writes() -> None:
    (queue,) = read(written(node("n1"))).queues
    assert config_of("reserve-quota").queues[0].quotas == queue.quotas != ()
    assert config_of("reserve").queues[0].quotas == ()


@pytest.mark.parametrize("policy", ["reserve", "expected"])
def test_relocations_open_a_node_for_a_job_and_what_is_moved_runs_anew(policy: str) -> None:
    """Two jobs of 3 GPUs lie on two nodes. One moves once a job of 8 GPUs has waited for longer than that loses."""
    hours = 3600
    jobs = trace(
        (0, 2 * hours, 5),
        (1, 2 * hours, 5),
        (2, 90 * hours, 3),
        (3, 90 * hours, 3),
        (4, 5 * hours, 8),
        (9 * hours, 9, 1),
    )
    stays, moved = waits(policy, jobs, (8, 8)), waits(f"{policy}-moving", jobs, (8, 8))
    assert stays[4] > 80 * hours > 10 * hours > moved[4]
    assert stays[2:4] == [0, 0]
    assert moved[:2] == [0, 0]
    again = [wait for wait in moved[2:4] if wait]
    assert len(again) == 1, "it found room elsewhere at once"
    assert 0 <= again[0] - moved[4] <= 3, "what it did before is lost, so that it has waited until then"


def test_a_job_that_never_starts_is_an_error_and_no_endless_loop() -> None:
    with pytest.raises(ValueError, match="line 2"):
        waits("skip", trace((0, 1, 9)))


def test_measures_are_by_size_with_interpolated_percentiles() -> None:
    jobs = trace((0, 10, 1), (0, 10, 8), (0, 30, 16))
    everybody, one, eight, more, least_eight = measure(jobs, [0, 100, 200])
    assert (everybody.size, everybody.jobs, everybody.wait_mean, everybody.wait_p99) == ("all", 3, 100.0, 198.0)
    assert (one.size, eight.size, more.size, least_eight.size) == ("1", "5-8", "over 8", "8 or more")
    assert (least_eight.jobs, least_eight.wait_max, least_eight.completion_mean) == (2, 200, 170.0)


def test_offered_load_is_gpu_time_asked_over_gpu_time_there_is() -> None:
    assert offered_load(trace((0, 10, 8), (5, 20, 1)), 10, 10) == 1.0


def test_history_is_what_had_ended_before_the_first_day_and_nothing_else() -> None:
    jobs = trace((0, 10, 1), (5, DAY_S, 1), (DAY_S, 1, 1), (2 * DAY_S, 1, 1))
    chosen, history = split(jobs, ReplayRequest(first_day=1, last_day=2))
    assert ([job.line for job in chosen], [job.line for job in history]) == ([4], [2])


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (ReplayRequest(gpus=10), "--gpus: 10 GPUs are no whole number of nodes of 8"),
        (ReplayRequest(gpus=8 * 10**12), "--gpus: 8000000000000 GPUs are more than 1000000"),
        (ReplayRequest(policies=("fifo", "best")), "--policy: no policy is called best; there are fifo"),
    ],
)
def test_what_cannot_be_replayed_is_refused_by_option(asked: ReplayRequest, said: str) -> None:
    with pytest.raises(StartupError, match=said):
        node_sizes(asked)


def test_a_job_larger_than_the_pool_is_refused_by_its_line() -> None:
    quiet = Console(quiet=True)
    with pytest.raises(StartupError, match="line 3 asks for 16, there are 8"):
        run(trace((0, 1, 8), (0, 1, 16)), ReplayRequest(gpus=8, first_day=0), quiet, quiet)


def test_the_command_prints_json_and_writes_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path, plot = tmp_path / "own.csv", tmp_path / "plot.png"
    path.write_text("submit_s,duration_s,num_gpus,vc\n0,100,8,a\n1,10,8,a\n2,5,1,b\n")
    asked = ["queue", str(path), "--gpus", "8", "--policy", "fifo,expected", "--plot", str(plot), "-o", "json"]
    said = json.loads(CliRunner().invoke(lab, asked, catch_exceptions=False).stdout)
    assert said["policies"]["fifo"][0]["wait_mean"] == pytest.approx((99 + 108) / 3, abs=0.1)
    assert said["policies"]["expected"][0]["wait_mean"] == pytest.approx((104 + 98) / 3, abs=0.1)
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("plot", ["plot.weird", "plot", "a.png", "nowhere/plot.png"])
def test_a_plot_that_cannot_be_written_is_refused_before_anything_runs(plot: str, tmp_path: Path) -> None:
    (tmp_path / "a.png").mkdir()
    path = tmp_path / "own.csv"
    path.write_text("submit_s,duration_s,num_gpus,vc\n0,100,8,a\n")
    failed = CliRunner().invoke(lab, ["queue", str(path), "--gpus", "8", "--plot", str(tmp_path / plot)])
    assert (failed.exit_code, "error: --plot: " in failed.output, "wait" in failed.output) == (5, True, False)


def test_the_command_says_what_is_wrong_and_fails(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("submit_s,duration_s,num_gpus,vc\n0,100,eight,a\n")
    failed = CliRunner().invoke(lab, ["queue", str(path)])
    assert failed.exit_code != 0
    assert "line 2, num_gpus" in failed.output


def test_under_history_who_had_all_for_long_waits_behind_a_newcomer_and_by_what_is_held_now_does_not() -> None:
    """One virtual cluster has had the node for nine days; as both wait, a third holds it, and its job came first."""
    before = [TraceJob(2 + day, day * DAY_S, DAY_S, 8, "old" if day < 9 else "third") for day in range(10)]
    both = [TraceJob(20, 10 * DAY_S - 20, 100, 8, "old"), TraceJob(21, 10 * DAY_S - 10, 100, 8, "new")]
    waited = {policy: waits(policy, before + both)[-2:] for policy in ("skip", "skip-users", "skip-share")}
    assert waited["skip"] == waited["skip-users"] == [20, 110]
    assert waited["skip-share"] == [120, 10]


def test_jains_index_counts_whoever_wanted_gpus_in_a_week() -> None:
    jobs = [TraceJob(2, 0, 6 * DAY_S, 2, "a"), TraceJob(3, 0, 6 * DAY_S, 1, "b"), TraceJob(4, 0, 8 * DAY_S, 1, "c")]
    jobs.append(TraceJob(5, 15 * DAY_S, DAY_S, 1, "a"))
    assert jain_by_week(jobs, [0, 0, 0, 0]) == [round(25**2 / 3 / (12**2 + 6**2 + 7**2), 3), 1.0]
    assert jain_by_week(jobs, [0, 0, 13 * DAY_S, 0]) == [round(18**2 / 3 / (12**2 + 6**2), 3), 1.0]


def test_a_generated_month_has_days_of_september_alone_and_follows_from_its_seed() -> None:
    jobs = [TraceJob(2 + n, n * 9 * DAY_S // 10, 10 + n, 1, ("a", "b")[n % 2]) for n in range(40)]
    made = generated_month(jobs, 1)
    assert made == generated_month(jobs, 1) != generated_month(jobs, 2)
    assert [job.submit_s for job in made] == sorted(job.submit_s for job in made)
    assert [job.line for job in made] == list(range(2, 2 + len(made)))
    september = {(job.vc, job.duration_s) for job in jobs if job.submit_s < OCTOBER_S}
    assert {(job.vc, job.duration_s) for job in made} <= september
