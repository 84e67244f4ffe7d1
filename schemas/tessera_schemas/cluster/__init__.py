"""What Kubernetes and the devices of a cluster call by name."""
