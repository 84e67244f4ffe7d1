"""
Launchers: what a job's pods are given so that its program starts in all of them, behind one port.

`port` says what every launcher answers, `registry` knows them, and each has a module. A new launcher is one module, its
name in the contract's job and a line in the registry. Pure.
"""
