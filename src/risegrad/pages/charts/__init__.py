"""Charts: plain data in, an Altair chart out. What they look like is in ``pages.page_theme``.

They are made without Altair's checks (``debug_mode(False)``): these go over every number of the
data at every step of the making, which costs more than all the rest of a page. The tests check.
"""

from risegrad.common.optional_imports import need

need("altair", "lab", "charts")
