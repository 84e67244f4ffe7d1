"""Commands about nodes: empty now, or kept for somebody at a time."""
