"""Nodes and devices: what they have, and what is free of it."""
