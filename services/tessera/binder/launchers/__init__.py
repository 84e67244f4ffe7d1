"""
Launchers: what a job's pods are given so that its program starts in all of them, behind one port.

`port` says what every launcher answers, and `registry` knows them. A new one is its name in the contract's job, a line
in the registry, and a module where no other launcher does the same. Pure.
"""
