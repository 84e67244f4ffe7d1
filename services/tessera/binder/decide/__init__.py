"""What the binder does, without any I/O: the steps of a run, and the pods, devices and nodes that they concern."""
