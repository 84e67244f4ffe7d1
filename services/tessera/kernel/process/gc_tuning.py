"""Garbage-collector tuning: full collections are made rare, and none is made as the process ends."""

import gc


def collect_rarely() -> None:
    """
    Call it once everything is imported.

    What is loaded by then stays, and messages, entities and events form no cycles: looking for some among all of them
    as often as the defaults do takes a tenth of a busy service's time. Pods are trees of fifty small objects and live
    for a moment in each of their versions: with 50,000 objects between two searches the binder still spent a tenth.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(500_000, 20, 100)


def end_uncollected() -> None:
    """
    Call it last: the interpreter searches what is left for cycles no more, whose memory the kernel takes back anyway.

    With copies of 10,000 nodes and as many pods that search took longer than a platform waits for a service to end.
    """
    gc.freeze()
