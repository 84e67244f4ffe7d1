"""
Logs of pods that are gone: read from the kubelets when runs end, kept in a directory or an object store.

In: the ledger (which runs end), the pods' logs. Out: one object per pod and attempt. Best effort: a pod that is gone
before its log was read has none, and the answer to a reader says so.
"""
