"""The seeded simulator, the three checkers, and traces through all services on virtual time."""
