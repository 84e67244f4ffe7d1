"""The Cluster port over the Kubernetes API, and kept copies of what it shows."""
