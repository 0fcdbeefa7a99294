"""Streams of text tasks: where they come from and how they are asked."""
