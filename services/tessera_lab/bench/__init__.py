"""
Cost of the platform on this machine: `make bench`, or `python -m tessera_lab.bench`.

Each row measures its own floor in the same run, interleaved with the rounds, since a machine's speed moves more than
anything that is compared here. The ratio to the floor is what may be compared from day to day.
"""
