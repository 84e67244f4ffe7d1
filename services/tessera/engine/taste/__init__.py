"""
Which of the nodes that a pod fits it should take: the placement policy that the configuration names.

`fits` decides whether, `topology` among which, and a **taste** which one: an integer score per (pod, node). The
highest wins, among equals the node whose name comes first. Every placement of the engine asks here, whoever asks it.
"""
