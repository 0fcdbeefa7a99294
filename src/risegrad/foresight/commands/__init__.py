"""Subcommands of ``rise`` about curvature; nothing heavy is imported at their tops."""
