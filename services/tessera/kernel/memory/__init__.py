"""In-memory adapters of every port, held to the same contract tests as the real ones."""
