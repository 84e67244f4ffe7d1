"""Provisioning by `tessera init`: identities, their permissions, streams and durables."""
