"""The figures, each a function from results to a matplotlib ``Figure``."""
