"""Claims as objects of the API, and the next write on each. Pure."""
