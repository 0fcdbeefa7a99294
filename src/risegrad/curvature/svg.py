"""Small plots as SVG text: nothing to install, nothing to fetch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#1b6ca8", "#d1603d", "#3d8b4f", "#8a5aa8", "#b8a123", "#5b6470")
FONT = 'font-family="system-ui, sans-serif" font-size="12" fill="currentColor"'


@dataclass(frozen=True)
class Bar:
    """A value with an error; NaN draws nothing."""

    value: float
    error: float = 0.0


def bars(rows: Mapping[str, Sequence[Bar]], series: Sequence[str], title: str) -> str:
    """Horizontal bars: one group per row, one bar per series, with error whiskers."""
    height, left, width = 14 * len(series) + 8, 10 + 7 * max(map(len, rows), default=0), 420
    found = [bar for group in rows.values() for bar in group if math.isfinite(bar.value)]
    low = min([0.0, *(bar.value - bar.error for bar in found)])
    high = max([0.0, *(bar.value + bar.error for bar in found)])
    span = (high - low) or 1.0

    def x(value: float) -> float:
        return left + (value - low) / span * width

    parts = [_text(left, 14, title, weight="bold"), *_legend(series, left, 32)]
    top = 44
    for row, (label, group) in enumerate(rows.items()):
        y = top + row * height
        parts.append(_text(left - 6, y + height / 2, label, anchor="end"))
        for place, bar in enumerate(group):
            if math.isfinite(bar.value):
                parts.extend(_bar(bar, x, y + 14 * place, COLOURS[place % len(COLOURS)]))
    bottom = top + height * len(rows)
    parts.append(_line(x(0), top - 4, x(0), bottom))
    # An end that lies close to zero would print over it.
    ticks = [0.0, *(end for end in (low, high) if abs(x(end) - x(0)) > 50)]
    parts.extend(_text(x(tick), bottom + 16, f"{tick:.2g}", anchor="middle") for tick in ticks)
    return _svg(left + width + 50, bottom + 26, parts)


def _bar(bar: Bar, x: object, y: float, colour: str) -> Iterator[str]:
    assert callable(x)
    start, end = sorted((x(0.0), x(bar.value)))
    yield (
        f'<rect x="{start:.1f}" y="{y:.1f}" width="{max(end - start, 0.5):.1f}" height="11" '
        f'fill="{colour}"/>'
    )
    if bar.error > 0:
        yield _line(x(bar.value - bar.error), y + 5.5, x(bar.value + bar.error), y + 5.5)


def scatter(
    series: Mapping[str, Sequence[tuple[float, float]]], title: str, across: str, up: str
) -> str:
    """Points and the line of equality, on axes that are linear near zero and logarithmic beyond."""
    points = [point for group in series.values() for point in group]
    sizes = sorted(abs(value) for point in points for value in point if value)
    # Most points belong to the logarithmic part, the smallest fifth to the linear one.
    unit = sizes[len(sizes) // 5] if sizes else 1.0
    scaled = [math.asinh(value / unit) for point in points for value in point] or [0.0]
    low, high = min(scaled), max(scaled)
    span = (high - low) or 1.0
    left, top, side = 70, 44, 340

    def place(value: float) -> float:
        return (math.asinh(value / unit) - low) / span * side

    parts = [_text(left, 14, title, weight="bold"), *_legend(list(series), left, 32)]
    parts.append(f'<rect x="{left}" y="{top}" width="{side}" height="{side}" fill="none" '
                 'stroke="currentColor" opacity="0.4"/>')  # fmt: skip
    parts.append(_line(left, top + side, left + side, top))
    for number, group in enumerate(series.values()):
        colour = COLOURS[number % len(COLOURS)]
        parts.extend(
            f'<circle cx="{left + place(x):.1f}" cy="{top + side - place(y):.1f}" r="3" '
            f'fill="{colour}" fill-opacity="0.6"/>'
            for x, y in group
        )
    for value in _ticks(unit, low, high):
        parts.append(_text(left + place(value), top + side + 16, f"{value:.0e}", anchor="middle"))
        parts.append(_text(left - 6, top + side - place(value) + 4, f"{value:.0e}", anchor="end"))
    parts.append(_text(left + side / 2, top + side + 36, across, anchor="middle"))
    parts.append(_text(left, top + side + 36, f"(up: {up})", anchor="start"))
    return _svg(left + side + 40, top + side + 46, parts)


def _ticks(unit: float, low: float, high: float) -> list[float]:
    """Zero and a few powers of ten on either side, as far as the axes reach."""
    ends = [math.sinh(low) * unit, math.sinh(high) * unit]
    found = [0.0] if ends[0] <= 0 <= ends[1] else []
    for end in ends:
        if end:
            exponent = math.floor(math.log10(abs(end)))
            found.append(math.copysign(10.0**exponent, end))
    return sorted(set(found))


def _legend(series: Sequence[str], x: float, y: float) -> Iterator[str]:
    for number, name in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        yield f'<rect x="{x:.0f}" y="{y - 9}" width="10" height="10" fill="{colour}"/>'
        yield _text(x + 14, y, name)
        x += 28 + 7 * len(name)


def _text(x: float, y: float, text: str, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" {FONT}>'
        f"{escape(text)}</text>"
    )


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor" '
        'opacity="0.7"/>'
    )


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" role="img">\n{body}\n</svg>'
    )
