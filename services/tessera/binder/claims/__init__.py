"""
Claims of pods on devices that drivers publish (DRA): made, allocated, and taken back.

The devices were decided with the pod's node. Before the bind each claim of the pod gets Kubernetes' finalizer, then, in
one write, its allocation and the pod as its user; a kubelet starts no pod without. All of it is undone for a pod that
can no longer be bound. What ran is let go of by Kubernetes' own controller of claims, once the kubelet has ended it;
what that controller keeps for a PodGroup is given back with the last pod.

Each write is held to the version that was read: a binder that dies between two lines leaves a claim from which the next
one goes on, and a claim that somebody else changed is read again.
"""
