"""The subcommands of ``rise`` that belong to the lab: one small module each."""
