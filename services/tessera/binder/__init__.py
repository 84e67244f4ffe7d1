"""
Binder: the only writer to Kubernetes.

In: the ledger; pods and nodes of the cluster. Out: pods made, bound, told and deleted; facts `pods_made`,
`pods_bound`, `bind_failed`, `run_started`, `checkpoint_saved`, `pods_lost`, `run_ended`, `node_seen` on
`fact.<shard>.binder.>`.
Guarantee: a pod is bound only under a permit that names its UID, so a stale binder can do nothing; every call is
idempotent and ordered per run, so the binder may die between any two lines. When it is down nothing new reaches the
cluster and nothing is seen to start or end; what runs goes on.
"""
