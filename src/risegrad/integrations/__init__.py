"""Callbacks for trainers that make their own optimizer; each needs its trainer installed.

Where you hold the optimizer yourself, ``risegrad.attach`` is enough, under every trainer.
"""
