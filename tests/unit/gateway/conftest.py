"""One world per test."""

from pathlib import Path

import pytest

from tests.unit.gateway.gateway_world import World, a_world


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return await a_world(tmp_path)
