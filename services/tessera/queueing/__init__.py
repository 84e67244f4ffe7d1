"""
Queueing: decides who is next.

In: the ledger. Out: `order.<shard>.<pool>`, the next jobs of each pool, published when a job comes to be in line or
the line changes its order. Guarantee: an order is a pure function of the state at its `basis_n`, its `ts`, engine and
policy, so a replay recomputes it. When it is down nothing new gets into line; what is in line still starts, and
everything else goes on.
"""
