"""Tests of ``rise report``."""
