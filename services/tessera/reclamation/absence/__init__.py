"""Runs and pods that are absent, as the cluster shows them."""
