"""What the laboratory's rooms share: settings, inputs of runs, intervals."""
