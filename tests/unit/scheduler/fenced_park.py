"""A park of full nodes, of which some are lost and turned off."""

from typing import Any

from tessera.client.ledger.replay import verify
from tessera.testkit.checker.report import Report
from tessera.testkit.rules_checker import check_rules
from tessera_schemas.cluster.fencing import FenceAnswered, FenceDue, Fencing
from tessera_schemas.cluster.health import Ailment, HealthCause, HealthPolicy
from tessera_schemas.facts import HealthSeen, RunLost
from tessera_schemas.ledger import FenceAsked, FenceEnded
from tessera_schemas.reasons import Code, Reason
from tests.builders import config_proposed, node_seen
from tests.rounds import Rounds

WEBHOOK = Fencing(url="https://power.example/fence")
NODES = tuple(f"node-{i}" for i in range(10))


class Park(Rounds):
    """Ten nodes, each full with a job of its own."""

    def __init__(self, fencing: Fencing | None = WEBHOOK, health: HealthPolicy | None = None, **policy: Any) -> None:
        super().__init__(nodes=dict.fromkeys(NODES, 8), mass_stop_percent=100, **policy)
        self.configure_fencing(fencing, health)
        for node in NODES:
            self.submit(node, gpus=8)
        self.settle()

    def configure_fencing(self, fencing: Fencing | None, health: HealthPolicy | None = None) -> None:
        body = self.state.config.body.model_copy(update={"fencing": fencing, "health": health})
        self.commit(config_proposed(body, self.state.config.version))

    def lose(self, *names: str) -> None:
        """The nodes are silent, and their runs are told to stop."""
        self.commit(*(node_seen(name, ready=False) for name in names))
        for name in names:
            for run in self.state.runs_on(name):
                reason = Reason(code=Code.NODE_LOST, field=f"nodes.{name}")
                self.commit(RunLost(kind="run_lost", run_id=run.run_id, reason=reason, nodes=(name,)))

    def sicken(self, *names: str, cause: HealthCause = HealthCause.GPU_LOST) -> None:
        """A source says so; what runs there is told to stop, where that is the action."""
        said = (Ailment(cause=cause),)
        self.commit(*(HealthSeen(kind="health_seen", node=name, source="dcgm", ailments=said) for name in names))

    def mend(self, *names: str) -> list[str]:
        return self.ends(*(HealthSeen(kind="health_seen", node=name, source="dcgm", ailments=()) for name in names))

    def fence(self, *names: str, sick: bool = False, ms: int = 1000) -> list[str]:
        """Nodes for which the webhook is asked once reclamation says that they are due."""
        due = (FenceDue(kind="fence_due", node=name, seconds=90, sick=sick) for name in names)
        message = self.commit(*due, ms=ms)
        return [record.node for record in message.records if isinstance(record, FenceAsked)]

    def answer(self, node: str, outcome: str = "off", request: str = "") -> list[str]:
        asked = request or self.state.fences.get(node).request
        fact = FenceAnswered.model_validate(
            {"kind": "fence_answered", "node": node, "request": asked, "outcome": outcome, "detail": "power: Off"}
        )
        return self.ends(fact)

    def ends(self, *facts: Any) -> list[str]:
        return [record.outcome for record in self.commit(*facts).records if isinstance(record, FenceEnded)]

    def check(self) -> None:
        report = Report()
        check_rules(report, self.stored)
        assert not report.violations
        assert verify(self.stored).findings == []


def lost_park(**more: Any) -> Park:
    park = Park(**more)
    park.lose("node-3")
    return park
