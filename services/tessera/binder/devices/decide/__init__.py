"""Slices, pools, layouts and selectors of published devices, as pure functions."""
