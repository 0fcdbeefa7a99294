"""Makes the pictures of docs/ that show pages and data: python docs/pictures.py (needs chromium).

Charts of results come from `rise report RECORDS --figures docs/figures`, figures 1 to 7 from
`rise sandbox`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
from playwright.sync_api import sync_playwright

from riselab.continual.vision.streams import build_stream, named_stream
from riselab.records.record import read_records
from riselab.report.builder import build, write_report

ROOT = Path(__file__).parents[1]
FIGURES, RECORDS = ROOT / "docs" / "figures", ROOT / "experiments" / "records"
SHOWN = 8
"""digits of each task"""


def charts(experiment: str, *endings: str) -> None:
    """Charts of an experiment's page that docs show beside its frontier."""
    records, _ = read_records([RECORDS / experiment])
    with tempfile.TemporaryDirectory() as made:
        write_report(build(records), Path(made) / "report.html", Path(made))
        for ending in endings:
            shutil.copy(Path(made) / f"{experiment}-{ending}.png", FIGURES)


def stream_images() -> None:
    """The first test image of each class, in every task of turned digits."""
    stream = build_stream(named_stream("turned-digits"))
    figure, axes = plt.subplots(len(stream), SHOWN, figsize=(SHOWN, len(stream)), dpi=120)
    for row, task in zip(axes, stream, strict=True):
        labels = task.test.labels.tolist()
        images = task.test.images([labels.index(k) for k in range(SHOWN)], train=False).mean(1)
        for axis, image in zip(row, images, strict=True):
            axis.imshow(image, cmap="gray_r", interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        row[0].set_ylabel(task.name, rotation=0, ha="right", va="center")
    figure.tight_layout(pad=0.3)
    figure.savefig(FIGURES / "turned-digits-images.png")


def report_page() -> None:
    """The first screen of a report, as a browser shows it."""
    records, _ = read_records([RECORDS / "turned-digits"])
    with tempfile.TemporaryDirectory() as made, sync_playwright() as tool:
        page_file = Path(made) / "report.html"
        write_report(build(records), page_file)
        # No sandbox: as root in a container chromium has none.
        browser = tool.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1100, "height": 1000})
        page.goto(page_file.as_uri())
        page.wait_for_selector(".plot svg", timeout=20_000)
        page.screenshot(path=FIGURES / "report-page.png")
        browser.close()


def foresight_points() -> None:
    """Predicted and true change of the old loss on three streams: four steps ahead, and the end."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), dpi=120)
    for axis, steps, title in zip(axes, (4, 0), ("4 steps ahead", "session's end"), strict=True):
        for file in sorted((RECORDS / "foresight").glob("*.json")):
            sessions = json.loads(file.read_text(encoding="utf-8"))["sessions"]
            moments = [m for s in sessions for m in s["moments"] if m["steps"] == steps]
            pairs = [(m["predicted"], m["true"]) for m in moments]
            axis.plot(*zip(*pairs, strict=True), "o", alpha=0.5, markersize=3, label=file.stem)
        axis.set(title=title, xlabel="predicted change")
        axis.set_xscale("symlog", linthresh=1e-3)
        axis.set_yscale("symlog", linthresh=1e-3)
        axis.set_xticks((-10, -0.1, 0, 0.1, 10, 1e3))
        axis.plot((-10, 0, 1e4), (-10, 0, 1e4), "--", color="grey", linewidth=0.8)
    axes[0].set_ylabel("true change")
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(FIGURES / "foresight-points.png")


MAKERS: tuple[Callable[[], None], ...] = (
    lambda: charts("digits", "matrices-accuracy", "stream-accuracy"),
    stream_images,
    report_page,
    foresight_points,
)

if __name__ == "__main__":
    for make in MAKERS:
        make()
