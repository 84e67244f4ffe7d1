"""What `tessera init` makes: identities, their permissions, streams and durables."""
