"""Sick machines, as exporters, nodes and other controllers show them."""
