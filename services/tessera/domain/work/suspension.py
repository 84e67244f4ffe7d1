"""Whether the owners of users' pods wait suspended, by the queue of their job."""

from tessera.domain.queues import QueueTree


def suspends_waiting(tree: QueueTree, queue: str) -> bool | None:
    """The setting of the lowest queue that has one; None if none has, or if the configuration has dropped the queue."""
    names = tree.path(queue) if queue in tree.queues else ()
    return next((suspended for name in names if (suspended := tree.queues[name].suspend_waiting) is not None), None)
