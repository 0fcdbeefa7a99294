"""What every room uses: checks, files, lazy names, optional imports, seeds."""
