"""The platform on one machine: up, down, demo, servers, the simulated cluster."""
