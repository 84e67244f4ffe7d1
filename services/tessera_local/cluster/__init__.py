"""
A simulated cluster that speaks the Kubernetes API: nodes, pods, and kubelets that start, refuse and end them.

In come the API's calls and the passing of time, out go objects and watch events, as a binder sees them from a real
API server: resourceVersions, UIDs, conflicts, finalizers, grace periods, expired watches. `core.SimCluster` does no
I/O and asks one clock for the time, so that one code serves the simulator (virtual time) and the HTTP server
(`python -m tessera_local.cluster`). Equal calls at equal times give equal objects and events.

Not simulated, on purpose: pod restarts (`restartPolicy`), pod garbage collection, namespaces as objects, admission
plug-ins, and any scheduler. Controllers are not either, but for batch/v1 Jobs (`jobs`), the taint manager (`taints`),
and what the node controller writes at once (`machines`).
"""
