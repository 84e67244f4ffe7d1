"""A service that gives way does so with its whole session where it has one, and with nobody else's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tessera.kernel.process.limits import AUTOGROUP
from tessera.launch import _settings_of
from tessera_schemas.shard.services import SERVICES, SPECS

SAYS = """
import asyncio
import os
from tessera.kernel.clock import SystemClock
from tessera.kernel.process.limits import give_way
asyncio.run(give_way({nice}, SystemClock()))
print(os.nice(0))
with open("{autogroup}") as file:
    print(file.read())
"""
# What is no group of one session, such as that of the first process, is shown as nothing at all.
SHOWN = AUTOGROUP if AUTOGROUP.exists() else Path(os.devnull)


def said(nice: int, own_session: bool) -> list[str]:
    """The process's own niceness; then its session's group with the niceness of that, in words, where there is one."""
    done = subprocess.run(
        [sys.executable, "-c", SAYS.format(nice=nice, autogroup=SHOWN)],
        start_new_session=own_session,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def raised_by(nice: int) -> str:
    """Whoever runs the tests may give way already."""
    return str(min(os.nice(0) + nice, 19))


def test_a_process_with_a_session_of_its_own_gives_way_with_all_of_it() -> None:
    own, *session = said(7, own_session=True)
    assert own == raised_by(7)
    assert session[2:] == (["7"] if SHOWN is AUTOGROUP else [])


def test_a_session_that_others_share_is_left_alone() -> None:
    before = SHOWN.read_text().split()
    assert said(7, own_session=False) == [raised_by(7), *before]


@pytest.mark.parametrize("own_session", [True, False])
def test_nothing_changes_without_a_wish(own_session: bool) -> None:
    assert said(0, own_session)[0] == raised_by(0)


def test_nobody_gives_way_on_whom_a_start_or_the_release_of_devices_waits() -> None:
    nice = {service: _settings_of(service).model_fields["nice"].default for service in SERVICES}
    first = {name for name in SERVICES if nice[name] == 0}
    assert {"admission", "queueing", "scheduler", "reclamation", "binder"} <= first
    assert {spec.name for spec in SPECS if spec.yields} == {name for name in SERVICES if nice[name] > 0}
