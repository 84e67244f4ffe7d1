"""
Reclamation: the one service that says that a run is absent, lost or idle, what is wrong with nodes, and what pods are
worth.

In: the ledger; pods and nodes of the cluster, read only; where it is asked for, Prometheus or exporters. Out: facts
`run_absent`, `run_lost`, `run_idle`, `run_used`, `run_stalled`, `health_seen`, `prices_learnt`, `mig_change_proposed`,
`node_test_proposed`, and `plan_proposed` of the causes reclaim and defragment on `fact.<shard>.reclamation.>`.
Guarantee: a run is absent when each of its pods has no object, or a terminal phase that its kubelet reported; what an
elastic run shrank by, when that is so of those pods. Never by time-out: an unreachable node keeps its GPUs until it is
fenced, and a run that is lost is only stopped. When it is down nothing is released: ended runs keep their devices until
it is back, everything else goes on with what is free.
"""
