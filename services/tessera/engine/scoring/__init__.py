"""Choice among the nodes that a pod fits: the scoring policy that the configuration names."""
