"""One platform per file of tests, since starting it takes longer than most of them."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.e2e.live import Live, configuration


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    """Everything runs and a configuration is in force."""
    async with Live.at(tmp_path_factory.mktemp("platform"), configuration()) as live:
        yield live
