"""
Queueing on the jobs of a real cluster: the same jobs under several policies, on virtual time, and how long they wait.

The protocol: nodes of eight GPUs, all empty at first; a job of up to eight GPUs lies on one node, a larger one takes
nodes that are wholly free (the last may keep a rest for others); nothing is preempted. At each instant runs end first,
then jobs arrive, then the policy starts what it will. `fifo` and `sjf-oracle` stop at the first job that does not fit,
`skip` goes on behind it; all three place by best fit. `expected` is the order of that name
(`engine/queueing/orders`) with earmarks, backfill and choice of node (`engine/queueing/node_timeline`); it never sees a
duration before the run has ended. `reserve` is the same by age, with room kept for one. `services` replays through the
whole platform instead.
"""
