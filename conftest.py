"""What pytest leaves out of the sources: modules whose optional package is not installed."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("avalanche") else ["src/risegrad/integrations/avalanche.py"]
