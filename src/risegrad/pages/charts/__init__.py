"""Charts: plain data in, an Altair chart out. What they look like is in ``pages.theme``."""

from risegrad.optional import need

need("altair", "lab", "charts")
