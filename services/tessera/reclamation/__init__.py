"""
Reclamation: the one service that says that a run is absent.

In: the ledger; the cluster, read only. Out: facts `run_absent` on `fact.<shard>.reclamation.>`.
Guarantee: a run is absent when each of its pods has no object, or a terminal phase that its kubelet reported. Never by
time-out: an unreachable node keeps its GPUs. When it is down nothing is released: ended runs keep their devices until
it is back, everything else goes on with what is free.
"""
