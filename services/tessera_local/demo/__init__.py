"""
`tessera demo`: a whole shard on this machine, shown at work for half a minute, with a service killed in the middle.

In: nothing but a number of jobs and nodes. Out: a live view, a summary, and an exit code that is 0 only if nothing is
lost, no invariant is broken and the replay agrees. Nothing is left running.
"""

from tessera_local.demo.run import demo

__all__ = ["demo"]
