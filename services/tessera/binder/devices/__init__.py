"""Devices that drivers publish (DRA): in come slices, classes and claims, out come layouts and what selectors take."""
