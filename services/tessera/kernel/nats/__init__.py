"""The Bus port over NATS JetStream."""
