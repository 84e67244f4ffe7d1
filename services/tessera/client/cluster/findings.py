"""Findings: what is wrong, and the way out; among them nodes that wait for an operator's word."""

from collections.abc import Iterator
from dataclasses import dataclass

from tessera_schemas.cluster.labels import say_it_is_off
from tessera_schemas.text.units import format_age
from tessera_schemas.views import NodeView


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that an operator has to know, and what to do about it."""

    what: str
    way_out: str

    def line(self) -> str:
        """One line: what is wrong, and the way out."""
        return f"{self.what}; {self.way_out}"


def awaited(node: NodeView, now_ms: int) -> Iterator[Finding]:
    """Each thing that an operator has to know or to say of the node, with the command that says it."""
    name = node.name
    since = f" for {format_age(max(0, now_ms - node.away_since_ts))}" if node.away_since_ts else ""
    if node.waiting_runs:
        fenced = f"; the fencing webhook: {node.fence}" if node.fence else ""
        yield Finding(
            f"node {name} has not answered{since}: stopped runs that hold devices there: {node.waiting_runs}{fenced}",
            f"they wait until {name} is back or is said to be off: `{say_it_is_off(name)}`",
        )
    elif node.fence.startswith(("failed", "held back")):
        yield Finding(
            f"node {name} is sick and to be turned off; the fencing webhook: {node.fence}",
            f"turn it off yourself, then say so: `{say_it_is_off(name)}`; or `tessera undrain {name}`, if it is well",
        )
    if node.held_back_runs:
        yield Finding(
            f"node {name}: runs that seem lost and go on (StopsHeldBack), since too many would be stopped at once: "
            f"{node.held_back_runs}",
            f"if they are lost, `tessera drain {name} --evict` stops them now",
        )
    if node.missing_gpus:
        yield Finding(
            f"node {name} offers {node.missing_gpus} GPUs fewer than its runs hold: they go on, and nothing new starts "
            "there",
            "look at its device plugin, and at the GPU itself",
        )
