"""Continual learning: streams of tasks, hosts that learn them one after another, metrics."""
