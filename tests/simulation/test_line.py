"""The line as a subscriber sees it, in small worlds under the quota that `config init` writes, by the judge's rules."""

import logging

import pytest
import structlog

from tessera.testkit.line_judge import sum_up
from tessera.testkit.sim.line import draw_world, judge_world

FOUND = ((1, False), (4, False), (8, True))
"""Seeds, and whether all jobs are of one class; each once had a delayed first blocked job, or idle GPUs."""


@pytest.mark.parametrize(("seed", "one_class"), FOUND)
def test_the_first_blocked_job_is_not_delayed_and_nothing_stands_idle_that_is_wanted(
    seed: int, one_class: bool
) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    found = judge_world(seed, one_class)
    assert len(found.waits) == len(draw_world(seed)[1])
    assert (found.delays, found.idle, found.dearer, found.unfinished) == ([], [], [], [])


def test_where_nobody_is_evicted_jobs_of_three_classes_wait_as_under_easy_with_true_ends() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    found = judge_world(1, evicts=False)
    figures = sum_up([found])
    assert (found.delays, found.idle, found.unfinished, figures.evictions) == ([], [], [], 0)
    assert max(figures.mean_wait, figures.gangs_mean, figures.gangs_p99) <= 1.05
