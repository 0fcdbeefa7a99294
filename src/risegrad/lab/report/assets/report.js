"use strict";
// The page is complete without this; here is only what responds. Nothing is made from text as HTML.

function sortable(table) {
  const heads = [...table.querySelectorAll('thead th[scope="col"]')];
  const bodies = [...table.tBodies].map((body) => ({
    body,
    lines: [...body.rows].filter((row) => !row.classList.contains("section")),
  }));
  heads.forEach((head, index) => {
    head.querySelector("button").addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: "none" };
      const order = next[head.getAttribute("aria-sort")];
      heads.forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", order);
      for (const { body, lines } of bodies) {
        body.append(...(order === "none" ? lines : sorted(lines, index, order)));
      }
    });
  });
}

function sorted(lines, index, order) {
  const sign = order === "ascending" ? 1 : -1;
  const key = (line) => line.cells[index].dataset.order;
  const numeric = index > 0
    && lines.every((line) => key(line) === undefined || Number.isFinite(Number(key(line))));
  return [...lines].sort((one, other) => {
    const [a, b] = [key(one), key(other)];
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);  // last
    return sign * (numeric ? a - b : a.localeCompare(b, "en", { numeric: true }));
  });
}

function responsive(figure) {
  const plot = figure.querySelector(".plot");
  const readout = figure.querySelector(".readout");
  const marks = [...plot.querySelectorAll(".mark")];
  const shown = () => marks.filter((mark) => !mark.closest(".series.off"));
  let active = null;

  function show(mark, ...others) {
    plot.querySelectorAll(".active").forEach((before) => before.classList.remove("active"));
    active = mark;
    const told = mark ? [mark, ...others] : [];
    told.forEach((one) => one.classList.add("active"));
    const text = told.map((one) => one.dataset.tip).join("; ") || readout.dataset.hint;
    if (readout.textContent !== text) readout.textContent = text;
    readout.classList.toggle("live", Boolean(mark));
  }

  function step(key) {
    const there = shown();
    const at = there.indexOf(active);
    if (key === "Home") return there[0];
    if (key === "End") return there[there.length - 1];
    const forward = key === "ArrowRight" || key === "ArrowDown";
    if (at < 0) return forward ? there[0] : there[there.length - 1];
    const rest = forward ? there.slice(at + 1) : there.slice(0, at).reverse();
    if (key === "ArrowRight" || key === "ArrowLeft") return rest[0] ?? active;
    const across = rest.find((mark) => mark.dataset.column === active.dataset.column
      && mark.dataset.line !== active.dataset.line);
    return across ?? active;
  }

  // Marks overlap, so the nearest counts; those at the same place are told together.
  function under(event) {
    if (plot.classList.contains("heat")) return [event.target.closest(".mark")].filter(Boolean);
    const places = shown().map((mark) => {
      const box = mark.querySelector(".shape").getBoundingClientRect();
      const [x, y] = [box.x + box.width / 2 - event.clientX, box.y + box.height / 2 - event.clientY];
      return { mark, x, y, distance: Math.hypot(x, y) };
    }).sort((one, other) => one.distance - other.distance);
    const [best] = places;
    if (!best || best.distance > 40) return [];
    const together = ({ x, y }) => Math.hypot(x - best.x, y - best.y) < 2;
    return places.filter(together).map(({ mark }) => mark);
  }

  for (const kind of ["pointermove", "click"]) {
    plot.addEventListener(kind, (event) => {
      const marks = under(event);
      if (marks.length) show(...marks);
    });
  }
  plot.addEventListener("pointerleave", () => { if (document.activeElement !== plot) show(null); });
  plot.addEventListener("focus", () => { if (!active) show(shown()[0] ?? null); });
  plot.addEventListener("blur", () => show(null));
  plot.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return show(null);
    if (!/^(Arrow|Home$|End$)/.test(event.key)) return;
    event.preventDefault();
    show(step(event.key) ?? null);
  });

  figure.querySelectorAll("[data-toggles]").forEach((button) => {
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      plot.querySelectorAll(`[data-series="${button.dataset.toggles}"]`)
        .forEach((series) => series.classList.toggle("off", !on));
      if (active?.closest(".series.off")) show(null);
    });
  });
}

function themed(button) {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const tell = () => button.setAttribute("aria-pressed", String(dark()));
  try {  // storage may be forbidden for a local file
    const kept = localStorage.getItem("rise-report-theme");
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  } catch { /* the system's choice stays */ }
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    tell();
    try {
      localStorage.setItem("rise-report-theme", root.dataset.theme);
    } catch { /* for this visit only */ }
  });
  system.addEventListener("change", tell);
  tell();
}

function downloadable(button) {
  button.addEventListener("click", () => {
    const text = document.getElementById("report-data").textContent;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    link.download = "report-data.json";
    link.click();
    URL.revokeObjectURL(link.href);
  });
}

document.querySelectorAll("table[data-sortable]").forEach(sortable);
document.querySelectorAll("figure.figure").forEach(responsive);
themed(document.getElementById("theme"));
downloadable(document.getElementById("download"));
