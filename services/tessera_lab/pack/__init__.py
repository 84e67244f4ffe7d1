"""Filling a cluster with a trace, policy by policy, by the published protocol."""
