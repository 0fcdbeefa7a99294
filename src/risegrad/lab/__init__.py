"""The laboratory is ``riselab`` now; ``from risegrad import lab`` still works."""

from riselab import LabResults as LabResults
from riselab import load as load
from riselab import run as run
