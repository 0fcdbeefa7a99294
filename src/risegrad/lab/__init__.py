"""From an experiment file to a table beside the paper's: runs, records, report."""
