"""
The API server fails, hides or lies by omission, and binders die at every step of the protocol; the platform's services
meet it through a proxy. After each fault everything has ended as it should and the ledger explains all of it.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tessera_schemas.shard.services import SEPARATE
from tests.e2e.live import SECONDS, configuration, eventually, job
from tests.e2e.platform_checks import assert_all_is_well
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.live import KubernetesLive, live_on, load
from tests.kubernetes.proxy import Proxy
from tests.kubernetes.users_objects import at_the

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = 600.0
CUT_SECONDS = 60.0
CREATES_AT_ONCE = 48  # calls in flight of the adapter, all of which are to hang


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proxy(own_plane: ControlPlane) -> AsyncIterator[Proxy]:
    own_plane.add_nodes(8, "gpu")
    async with Proxy(own_plane).running() as proxy:
        yield proxy


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(
    own_plane: ControlPlane, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KubernetesLive]:
    urls = {"binder": proxy.url, "reclamation": proxy.url}
    async with live_on(
        own_plane, tmp_path_factory.mktemp("platform"), configuration(), urls=urls, layout=SEPARATE
    ) as live:
        yield live


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def calm(live: KubernetesLive, proxy: Proxy) -> AsyncIterator[None]:
    """What a test that failed has broken is no other test's business."""
    yield
    proxy.calm_down()
    if live.platform.pid("binder") is None:
        await live.platform.start("binder")


STEPS = {
    "before the first pod is made": ("before", 1, "create", "/pods"),
    "after the first pod is made": ("after", 1, "create", "/pods"),
    "after the last pod is made": ("after", 3, "create", "/pods"),
    "before the first bind": ("before", 1, "bind", "/pods"),
    "after the first bind": ("after", 1, "bind", "/pods"),
    "after the last bind": ("after", 3, "bind", "/pods"),
    "before the first deletion": ("before", 1, "delete", "/pods"),
    "after the last deletion": ("after", 3, "delete", "/pods"),
    "before a finalizer is taken off": ("before", 1, "patch", "/pods"),
    "after a finalizer is taken off": ("after", 1, "patch", "/pods"),
}


@pytest.mark.parametrize("step", STEPS)
async def test_a_binder_killed_at_any_step_is_followed_by_one_that_finishes_the_work(
    live: KubernetesLive, proxy: Proxy, step: str
) -> None:
    when, number, verb, part = STEPS[step]
    reached = asyncio.Event()
    setattr(proxy, when, at_the(number, verb, part, reached, live))
    done = await live.submit(job("gang", gpus=2, replicas=3, seconds=LONG), answer_seconds=0)
    if verb in ("delete", "patch"):
        await live.until_phase(done.job_id, "running")
        await live.clients["lab"].cancel(done.job_id)
    await asyncio.wait_for(reached.wait(), SECONDS)
    await eventually(lambda: live.platform.pid("binder") is None, "the binder is dead")
    proxy.calm_down()
    await live.platform.start("binder")
    if verb in ("create", "bind"):
        await live.until_phase(done.job_id, "running")
        await live.clients["lab"].cancel(done.job_id)
    await assert_all_is_well(live)
    assert live.state.ended.get(done.job_id).attempt == 1  # type: ignore[union-attr]


async def test_two_binders_share_the_work_and_one_that_slept_does_no_harm(live: KubernetesLive) -> None:
    async with live.another("binder") as second, load(live, at_least=24):
        await second.until_ready()
        live.platform.pause("binder")
        await asyncio.sleep(4)  # beyond its leases: the other one takes its partitions over
        live.platform.resume("binder")
    await assert_all_is_well(live)


async def test_the_api_server_is_killed_and_comes_back(live: KubernetesLive) -> None:
    async with load(live, at_least=16):
        live.plane.restart_api_server()
    await assert_all_is_well(live)


async def test_a_fifth_of_all_calls_is_refused_or_never_answered(live: KubernetesLive, proxy: Proxy) -> None:
    proxy.share = 0.2
    async with load(live, at_least=30):
        pass
    await live.until_idle()
    proxy.calm_down()
    assert {kind for _, kind in proxy.met} == {"409", "429", "500", "lost"}
    await assert_all_is_well(live)


async def test_calls_that_hang_after_their_effect_are_given_up_and_found_done(
    live: KubernetesLive, proxy: Proxy
) -> None:
    for verb in ("create", "bind", "delete"):
        proxy.hang(verb)
    done = await live.submit(job("gang", gpus=1, replicas=3, seconds=1))
    await live.until_ended(done.job_id)
    ended = live.state.ended.get(done.job_id)
    assert ended is not None
    assert (ended.phase, ended.attempt) == ("succeeded", 1)
    await assert_all_is_well(live)


async def test_gpus_are_freed_while_every_creation_of_a_pod_hangs(live: KubernetesLive, proxy: Proxy) -> None:
    running = await live.submit(job("running", gpus=8, replicas=2, seconds=LONG))
    await live.until_phase(running.job_id, "running")
    hanging, answers = asyncio.Semaphore(0), asyncio.Event()

    async def hang(verb: str, path: str) -> None:
        if verb == "create" and path.endswith("/pods"):
            hanging.release()
            await answers.wait()

    proxy.before = hang
    wide = [await live.submit(job(f"wide-{n}", gpus=0, replicas=60, seconds=0.2)) for n in range(2)]
    for _ in range(CREATES_AT_ONCE):
        await asyncio.wait_for(hanging.acquire(), SECONDS)
    await live.clients["lab"].cancel(running.job_id)
    await live.until(lambda state: state.runs.get(f"{running.job_id}-1") is None, "the run is released")
    assert not answers.is_set()
    proxy.calm_down()
    answers.set()
    await live.until_ended(*(done.job_id for done in wide))
    assert {live.phase(done.job_id) for done in wide} == {"succeeded"}
    await assert_all_is_well(live)


async def test_watches_are_cut_for_a_minute_and_what_happened_meanwhile_is_seen_after_it(
    live: KubernetesLive, proxy: Proxy
) -> None:
    running = await live.submit(job("ends-unseen", gpus=1, replicas=2, seconds=20))
    await live.until_phase(running.job_id, "running")
    proxy.cut_watches()
    unseen = await live.submit(job("starts-unseen", gpus=2, seconds=1))
    await asyncio.sleep(CUT_SECONDS)
    proxy.mend_watches()
    await live.until_ended(running.job_id, unseen.job_id)
    assert {live.phase(running.job_id), live.phase(unseen.job_id)} == {"succeeded"}
    await assert_all_is_well(live)
