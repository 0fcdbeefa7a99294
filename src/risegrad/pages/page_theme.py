"""How charts look: the part of a Vega-Lite specification that depends on light, dark and size."""

from __future__ import annotations

from typing import Any

FONT = 'system-ui, -apple-system, "Segoe UI", "Noto Sans", "Liberation Sans", sans-serif'
TEXT = {"light": "#17202b", "dark": "#e8edf3"}
SOFT = {"light": "#526073", "dark": "#a5b2c2"}
LINES = {"light": "#e3e8ee", "dark": "#2b3440"}
GROUND = {"light": "#ffffff", "dark": "#12161c"}


def config(scheme: str, size: float = 12.5) -> dict[str, Any]:
    """Vega-Lite's ``config`` for ``light`` or ``dark`` with text of ``size`` pixels."""
    text, soft, line = TEXT[scheme], SOFT[scheme], LINES[scheme]
    return {
        "background": GROUND[scheme],
        "font": FONT,
        "fontSize": {"guideLabel": size, "guideTitle": size, "text": size, "groupTitle": size},
        "padding": 4,
        "view": {"stroke": None},
        "axis": {
            "labelColor": soft,
            "titleColor": text,
            "titleFontWeight": "normal",
            "gridColor": line,
            "domainColor": line,
            "tickColor": line,
            "labelPadding": 6,
            "labelOverlap": "greedy",
            "labelFlush": False,
        },
        "legend": {
            "orient": "bottom",
            "title": None,
            "labelColor": text,
            "titleColor": text,
            "titleFontWeight": "normal",
            "columns": 3,
            "labelLimit": 260,
            "symbolSize": 90,
            "symbolOpacity": 1,
            "symbolStrokeWidth": 0,  # dashes are for lines; around a symbol they look frayed
            "rowPadding": 4,
        },
        "header": {"labelColor": text, "title": None, "labelLimit": 210, "labelPadding": 6},
        "text": {"color": text},
        "rule": {"color": soft},
        "style": {
            "halo": {"fill": GROUND[scheme], "stroke": GROUND[scheme], "strokeWidth": 4},
            "label": {"fill": text},
        },
    }
