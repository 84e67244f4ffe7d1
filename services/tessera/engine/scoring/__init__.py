"""Which of the nodes that a pod fits it should take: the scoring policy that the configuration names."""
