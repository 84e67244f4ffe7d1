"""`init` and `apply` connect to whichever of several NATS servers answers, as services do."""

from pathlib import Path

from tessera.kernel.nats.once import connect_once
from tests.servers import start_nats


async def test_one_of_several_servers_is_enough(tmp_path: Path) -> None:
    server = start_nats(tmp_path / "nats")
    gone = start_nats(tmp_path / "gone")
    gone.stop()
    try:
        admin = await connect_once(f"{gone.url}, {server.url}", server.user, server.password, seconds=60)
        assert admin.is_connected
        await admin.close()
    finally:
        server.stop()
