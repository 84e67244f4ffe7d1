"""
The seeded simulator: all services in one process, on in-memory ports and virtual time, with faults.

One seed is one run, on every machine. `python -m tessera.testkit.sim --seeds 100` runs many, prints what was
reached, and fails on a violation (naming its seed) and on anything that was never reached at all.
"""
