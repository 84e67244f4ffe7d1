"""The commands about a shard: its nodes, queues, configuration and health."""
