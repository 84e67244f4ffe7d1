"""Elastic jobs on a real API server: tests of `tests/e2e`, whose pods real controllers look after here."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tessera_schemas.config import Policy
from tests.e2e.elastic_suite import (  # noqa: F401
    test_it_grows_into_an_empty_cluster_gives_way_to_who_waits_and_grows_back,
    test_it_succeeds_with_all_that_it_grew_by,
)
from tests.e2e.live import GPUS, configuration
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KubernetesLive]:
    """Nobody may be evicted, and what is elastic grows as soon as it can."""
    own_plane.add_nodes(GPUS // 8, "gpu")
    body = configuration(policy=Policy(preset="off", grow_after_seconds=1))
    async with live_on(own_plane, tmp_path_factory.mktemp("platform"), body) as live:
        yield live
