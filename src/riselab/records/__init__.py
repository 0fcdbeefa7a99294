"""What a run leaves behind, and what it says of the machine, the software and the files."""
