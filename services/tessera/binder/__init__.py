"""
Binder: the only writer to Kubernetes.

In: the ledger; pods and nodes of the cluster, and users' own pods and batch Jobs. Out: pods made, bound, told and
deleted; users' pods claimed, bound, told and evicted, and submitted on `submit.<shard>.<tenant>.kubernetes`; facts
`pods_made`, `pods_bound`, `bind_failed`, `run_started`, `checkpoint_saved`, `session_unused`, `eviction_blocked`,
`pods_back`, `pods_lost`, `run_ended`, `node_seen` on `fact.<shard>.binder.>`.
Guarantee: a pod is bound only under a permit that names its UID, so a stale binder can do nothing; every call is
idempotent and ordered per run, so the binder may die between any two lines. When it is down nothing new reaches the
cluster and nothing is seen to start or end; what runs goes on.
"""
