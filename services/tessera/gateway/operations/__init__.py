"""The operations of the API: their table, requests and answers."""
