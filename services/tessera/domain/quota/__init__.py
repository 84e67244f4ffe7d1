"""Settings of queues and of idle runs, quotas that are parts of a pool, and bookings of nodes in time."""
