"""
Property tests draw the same examples in every run, so that a red run is a change's doing and is red again.

Which they are depends on the test alone: neither on other files of the run nor on other code.
`HYPOTHESIS_PROFILE=explore` draws others each time; what it finds becomes a test of its own. No example has a deadline,
nor is any drawn too slowly: machines are noisy.
"""

import gc
import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tessera.kernel.process.limits import collect_rarely

gc.disable()  # while modules are loaded and tests collected, in every worker: nothing of it is garbage

# What several folders' tests call says what it found, as they do: named before anybody imports it.
pytest.register_assert_rewrite(
    "tests.contract.bus_worlds",
    "tests.contract.cluster_suite",
    "tests.e2e.elastic_suite",
    "tests.e2e.live",
    "tests.e2e.node_faults",
    "tests.e2e.platform_checks",
    "tests.e2e.preemption_suite",
    "tests.unit.local.cluster_world",
    "tests.unit.scheduler.contested_world",
)

UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same", derandomize=True, **UNTIMED)
settings.register_profile("explore", print_blob=True, **UNTIMED)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "same")
settings.load_profile(PROFILE)


def draw_no_constants_of_code() -> None:
    """
    Hypothesis draws one value in forty from the constants of all modules that are loaded and installed nowhere.

    A change of any constant, or one more file of tests in a run, would change the examples of every other test. No
    setting of Hypothesis ends that; this is where it asks whether a module is one of them.
    """
    providers.is_local_module_file = lambda path: False


if PROFILE == "same":
    draw_no_constants_of_code()


SEEDS = "tests/simulation/test_seeds.py"
EVERY_TEST = "EVERY_TEST"
"""The variable that has tests marked `nightly` run, too."""

# Files that take a minute or more, the longest first: begun last, each would be waited for by idle workers.
LONGEST = (
    "tests/e2e/test_page.py",
    "tests/operations/test_alarms.py",
    "tests/e2e/test_commands.py",
    "tests/operations/test_tutorial.py",
    "tests/e2e/test_each_service_alone.py",
    "tests/e2e/test_logged_in.py",
    "tests/e2e/test_demo.py",
    "tests/e2e/test_goes_on.py",
    "tests/operations/test_runbooks.py",
    "tests/e2e/test_two_shards.py",
    "tests/e2e/test_backup.py",
    "tests/e2e/test_ledger_that_lost_its_end.py",
)


class ByFile(LoadFileScheduling):
    """The tests of a file share one worker, since they share a platform; each simulated seed goes to any worker."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(SEEDS) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """Every run of several workers goes by files."""
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first, all others in the order of their names (with `--no-loadscope-reorder`)."""
    leave_to_the_night(items)
    rank = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(rank)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """The first line below the dots says which promises are broken: tests are named by sentences."""
    reports = [*terminalreporter.stats.get("failed", ()), *terminalreporter.stats.get("error", ())]
    for node_id in dict.fromkeys(report.nodeid for report in reports):
        path, _, name = node_id.partition("::")
        promise = name.rpartition("::")[2].removeprefix("test_").replace("_", " ")
        terminalreporter.write_line(f"broken promise: {promise or path} ({path})", red=True)
    yield


def leave_to_the_night(items: list[pytest.Item]) -> None:
    """Skip what is marked `nightly`: tests that take long beside what a change may break by them."""
    for item in items:
        found = item.get_closest_marker("nightly")
        if found is not None and os.environ.get(EVERY_TEST) != "1":
            item.add_marker(pytest.mark.skip(reason=f"each night, or with {EVERY_TEST}=1: {found.args[0]}"))


def pytest_collection_finish() -> None:
    """Garbage collection as in a service: what is loaded by now is never searched again."""
    gc.enable()
    collect_rarely()


@pytest.fixture(autouse=True)
def logs_are_told() -> None:
    """The command keeps all but errors to itself, for its whole process: no other test is to miss a line for it."""
    structlog.reset_defaults()
