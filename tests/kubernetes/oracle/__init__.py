"""
Generated worlds of devices and claims for kube-scheduler and for Tessera, and a judge that shares code with neither.

`python -m tests.kubernetes.oracle` plays them on a real API server: whatever kube-scheduler places Tessera can place,
and no set of devices is one that a claim must not have.
"""
