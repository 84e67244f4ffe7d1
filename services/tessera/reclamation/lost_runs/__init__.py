"""Runs that lost a node, a device or their time."""
