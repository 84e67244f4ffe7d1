"""The way to a shard: where it is, who we are there, and its views by HTTP, or from Redis."""
