"""Pods that come and go on virtual time: how much of a cluster each policy keeps in use once it is steady."""
