"""Ratios measured in one run: never absolute times."""
