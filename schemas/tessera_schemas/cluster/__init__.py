"""Names that Kubernetes and the devices of a cluster give to things."""
