"""Settings of queues, and quotas that are parts of a pool."""
