"""The kit of all pages."""
