"""The Cluster port's tests on the simulated cluster, in memory and over HTTP."""

from collections.abc import AsyncIterator

import pytest

from tests.contract.cluster_suite import *  # noqa: F403  (the tests themselves)
from tests.contract.cluster_suite import Setup
from tests.contract.cluster_worlds import in_memory, over_http

WORLDS = {"memory": in_memory, "http": over_http}


@pytest.fixture(params=list(WORLDS))
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Setup]:
    async with WORLDS[request.param]() as setup:
        yield setup
