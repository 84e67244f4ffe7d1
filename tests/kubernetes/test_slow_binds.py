"""
The alarm about calls that wait at the API server rings for a real one that is short of seats, and falls silent once the
chart's FlowSchema serves the binder.
"""

import asyncio
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tessera.kernel.ports import ApiError
from tests.e2e.prometheus import RULES, reading, rings_after_a_second
from tests.kubernetes.api import Api
from tests.kubernetes.conftest import running
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.deployed import deploy, token_of

pytestmark = [
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus: `make prometheus` installs it"),
]
FEW_SEATS = ("max-requests-inflight=6", "max-mutating-requests-inflight=6")
NEVER_REACHED = "999999999"  # the server waits three seconds for such a version, in its seat, and then refuses
CALLERS = 24


@pytest.fixture
def short_of_seats(tmp_path: Path) -> Iterator[ControlPlane]:
    with running(tmp_path / "kubernetes", kubelets=False, api_flags=FEW_SEATS) as plane:
        yield plane


@contextmanager
def slow_calls(api: Api) -> Iterator[None]:
    """Somebody's service account asks for what takes long, many times at once, meanwhile."""
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            with suppress(ApiError):  # that it is refused in the end is what takes so long
                api.get("/api/v1/configmaps", resourceVersion=NEVER_REACHED)

    with ThreadPoolExecutor(CALLERS) as pool:
        try:
            for _ in range(CALLERS):
                pool.submit(ask)
            yield
        finally:
            over.set()


async def test_calls_that_wait_behind_everybodys_accounts_ring_until_our_flow_schema_serves(
    short_of_seats: ControlPlane, tmp_path: Path
) -> None:
    plane = short_of_seats
    anybody = plane.service_account_token("default", "default")
    may_read = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}
    plane.grant("system:serviceaccount:default:default", [may_read])
    job = {
        "job_name": "apiserver",
        "scheme": "https",
        "authorization": {"credentials": plane.token()},
        "tls_config": {"ca_file": str(plane.ca_file)},
    }
    rules = rings_after_a_second(RULES.read_text())
    target = {"targets": [urlsplit(plane.url).netloc], "labels": {}}
    async with reading(tmp_path, [target], rules, job) as prometheus:
        await prometheus.gives("up == 1")
        with slow_calls(plane.api(token=anybody)):
            await prometheus.until_rings("TesseraSlowBinds")
        await asyncio.to_thread(deploy, plane)
        binder = await asyncio.to_thread(token_of, plane, "binder")
        await asyncio.to_thread(plane.api(token=binder).get, "/api/v1/nodes", limit="1")
        await prometheus.until_silent("TesseraSlowBinds")
