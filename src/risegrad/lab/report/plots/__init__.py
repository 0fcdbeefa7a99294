"""Plots as SVG: drawn here, so that the page shows them without scripts; scripts add response."""
