"""The browser of the tests of pages."""

from lab.report.browser_pages import browser, opened, pages

__all__ = ["browser", "opened", "pages"]
