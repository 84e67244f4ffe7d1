"""All shared I/O: ports, the loops that call handlers, and the adapters behind the ports."""
