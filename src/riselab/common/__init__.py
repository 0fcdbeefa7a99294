"""What the rooms share: settings, inputs of runs, folders, intervals."""
