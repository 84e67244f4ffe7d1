"""The lab: trace replay, the seeded simulator, the simulated cluster and the local platform."""
