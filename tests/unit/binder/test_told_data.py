"""What a node says of its data sets and is no name, in the binder's log, for who wrote it."""

from structlog.testing import capture_logs

from tests.unit.binder.cluster_world import World


def say(world: World, words: str) -> None:
    world.core.patch("nodes", "", "node-a", {"metadata": {"annotations": {"tessera.io/datasets": words}}})


async def test_the_operator_is_told_once_of_each_change_of_words_that_are_no_names() -> None:
    async with World() as world:
        with capture_logs() as logs:
            for words in ("maps", "maps,Not A Name", "maps,Not A Name,photos", "maps", "Not A Name"):
                say(world, words)
                await world.run(1)
    told = [(line["node"], line["words"], line["log_level"]) for line in logs if line["event"] == "datasets_not_read"]
    assert told == [("node-a", "Not A Name", "warning")] * 2
