"""The way in: connections, checks of a request, tokens, and every "no"."""
