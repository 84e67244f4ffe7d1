"""
Launchers: what a job's pods are given so that its program starts in all of them, behind one port. Pure.

A new one is its name in the contract's job, a line in `registry`, and a module where no other one does the same.
"""
