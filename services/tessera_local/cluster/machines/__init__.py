"""The machines of the simulated cluster, and what runs there."""
