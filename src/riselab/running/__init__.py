"""Runs: which is next, where it happens, and how far it is."""
