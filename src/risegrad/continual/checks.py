"""The package's checks of settings, under the name by which the streams of texts import them."""

from risegrad.checks import check_choice, check_number

__all__ = ["check_choice", "check_number"]
