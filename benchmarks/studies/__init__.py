"""Questions that were settled by a small trial: scripts, and their results beside them."""
