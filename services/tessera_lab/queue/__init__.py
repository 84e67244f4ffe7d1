"""
Queueing on the jobs of a real cluster: the same jobs under several policies, on virtual time, and how long they wait.

The protocol: nodes of eight GPUs, all empty at first; a job of up to eight GPUs lies on one node, a larger one takes
nodes that are wholly free (the last may keep a rest for others); nothing is preempted. At each instant runs end first,
then jobs arrive, then the policy starts what it will. `fifo` and `sjf-oracle` stop at the first job that does not fit,
`skip` goes on behind it; all three place by best fit. `expected` and `reserve` are configurations of a shard
(`configured`): the live order and the committer's decision take in the facts of the trace (`live`). No duration is
known to them before the run has ended. With `-moving` behind their names reclamation's plans relocate runs, too; what
is moved begins anew. `services` replays through the whole platform instead.
"""
