"""What every room uses: checks, settings, files, lazy names, optional imports, seeds."""
