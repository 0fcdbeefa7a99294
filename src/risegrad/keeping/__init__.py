"""Keep what a model knows while it learns: ``risegrad.keep`` and what it is made of."""
