import asyncio

from tessera.client import Tessera


async def main() -> None:
    async with Tessera.connect("demo") as tessera:
        async for event in tessera.subscribe("allocations"):
            print(event.id, event.data["job_id"], event.data["placements"], flush=True)


asyncio.run(main())
