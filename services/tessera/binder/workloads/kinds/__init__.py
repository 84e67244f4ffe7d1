"""One module per kind; nobody but the registry imports them."""
