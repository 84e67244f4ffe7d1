"""What pods are worth, learnt beside the service."""
