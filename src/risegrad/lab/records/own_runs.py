"""Where ``MeteredRun`` is imported from besides ``risegrad.integrations.run_record``."""

from risegrad.integrations.run_record import MeteredRun, write_own_run

__all__ = ["MeteredRun", "write_own_run"]
