"""Local validation of experiments, a run diagnosed before a session, and ``rise calibrate``."""
