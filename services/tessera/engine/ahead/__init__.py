"""Time ahead: how long jobs run, and which nodes are kept for whom in windows of time."""
