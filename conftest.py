"""What pytest leaves out of the sources: modules whose optional package is not installed."""

from importlib.util import find_spec

collect_ignore = [
    f"src/risegrad/integrations/{name}.py"
    for name in ("avalanche", "axolotl")
    if not find_spec(name)
]
