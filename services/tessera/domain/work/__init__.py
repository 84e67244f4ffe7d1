"""Jobs and runs: gangs, arrays, dependencies, limits, how they end."""
