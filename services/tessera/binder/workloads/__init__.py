"""
Kinds of users' workloads whose pods form one job, behind one port.

`port` says what every kind answers, `registry` knows the kinds and is all that adoption asks, `kinds` has a module for
each. A new kind is one module, a line in the registry, its rights and its tests. Pure.
"""
