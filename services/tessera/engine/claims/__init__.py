"""
Choice of devices of one node for the claims of a pod (DRA), by integers alone.

In: what the node offers and has free, and claims. Out: devices for every request of every claim, or why there are none.
Equal inputs give equal answers, so that a thousand nodes of one make and state are one search. No CEL is needed: which
devices an expression takes is known before (`Offer.selected`). `numa_zones` counts pods by the zones of device plugins.
"""
