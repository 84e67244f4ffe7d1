"""Learning of prices for pods, beside the service."""
