"""Settings of queues, quotas that are parts of a pool, and bookings of nodes in time."""
