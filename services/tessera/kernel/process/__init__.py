"""One service as one process: settings, checks before the start, leases, CPU priority, the end."""
