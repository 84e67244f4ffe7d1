"""
Projection: derives from the ledger what others read. It decides nothing.

In: the ledger. Out: Redis (views and their cursor), `events.<shard>.<tenant>.<queue>.<type>`, `snap.<shard>.>`.
Guarantee: Redis holds exactly the views as of its cursor; the events are a pure function of the ledger, in its order,
none lost and none doubled; a snapshot is the state before a checkpoint record. Each of the three has progress of its
own: one that cannot be written to is tried again and does not hold up the others. When projection is down, readers see
older views and subscribers wait; nothing else notices.
"""
