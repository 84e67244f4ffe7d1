"""The nodes of the shard, and what is used of them."""
