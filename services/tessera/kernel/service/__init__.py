"""What every service is given: its ports and names, logs, metrics, the trace header, and its health."""
