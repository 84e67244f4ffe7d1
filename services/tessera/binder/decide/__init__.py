"""Decisions of the binder, without I/O: the steps of a run, and the pods, devices and nodes that they concern."""
