"""Equipment of every service: its ports and names, logs, metrics, the trace header, and its health."""
