"use strict";
// Draws the charts and answers to the reader. Nothing is made from text as HTML.

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

const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
const { charts, themes } = JSON.parse(document.getElementById("chart-data").textContent);
const redraws = [];

// The looks of a chart for a place of this width: sizes of text grow with the page.
function looks(scheme, width, longest) {
  const scale = parseFloat(getComputedStyle(root).fontSize) / 16;
  const config = structuredClone(themes[scheme]);
  for (const key of Object.keys(config.fontSize)) config.fontSize[key] *= scale;
  const entry = (longest * 6.8 + 44) * scale;
  config.legend.columns = Math.max(1, Math.min(5, Math.floor(width / entry)));
  config.legend.labelLimit = Math.min(config.legend.labelLimit * scale, width - 60);
  config.header.labelLimit = 210 * scale;
  return { config, scale };
}

function names(value) {
  const found = value?.encoding?.color?.scale?.domain ?? [];
  const inner = [...(value?.layer ?? []), ...(value?.spec ? [value.spec] : [])];
  return [...found.filter((name) => typeof name === "string"), ...inner.flatMap(names)];
}

// The specification for a place of this width: a facet gets as many columns as fit.
function fitted(spec, width, scale) {
  const found = structuredClone(spec);
  if (found.facet) {
    const side = found.spec.width + 60;
    found.columns = Math.max(1, Math.min(6, Math.floor(width / side)));
    return found;
  }
  found.width = width;
  found.height = Math.round(found.height * Math.min(scale, 1.5));
  found.autosize = { type: "fit-x", contains: "padding" };
  return found;
}

function embed(element, spec, config, tooltip) {
  // "ast" reads expressions without making functions from text, which the policy forbids.
  const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true, config, tooltip };
  return vegaEmbed(element, spec, { ...options, defaultStyle: false });
}

function charted(figure) {
  const plot = figure.querySelector(".plot");
  const tip = figure.querySelector(".tip");
  const label = plot.getAttribute("aria-label");
  const spec = charts[plot.id];
  const longest = Math.max(8, ...names(spec).map((name) => Math.min(name.length, 38)));
  let shown = null, active = null, at = 0;

  function tell(text, x, y) {
    if (tip.textContent !== (text ?? "")) tip.textContent = text ?? "";
    tip.classList.toggle("live", Boolean(text));
    if (!text) return;
    const box = figure.getBoundingClientRect();
    const left = Math.min(x - box.left + 14, box.width - tip.offsetWidth - 4);
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(0, y - box.top - tip.offsetHeight - 12)}px`;
  }

  async function draw() {
    const width = Math.floor(plot.clientWidth);
    if (!width) return;  // inside closed details
    at = width;
    const { config, scale } = looks(isDark() ? "dark" : "light", width, longest);
    const pointed = (handler, event, item, value) => {
      if (value) tell(String(value), event.clientX, event.clientY);
      else if (document.activeElement !== plot) tell(null);
    };
    const before = shown;
    shown = await embed(plot, fitted(spec, width, scale), config, pointed);
    plot.setAttribute("aria-label", label);  // the drawing put its own, shorter one there
    active = null;
    before?.finalize();
  }

  const marks = () => [...plot.querySelectorAll(".role-mark path")]
    .filter((path) => path.__data__?.tooltip);

  function point(mark) {
    plot.querySelectorAll(".active").forEach((one) => one.classList.remove("active"));
    active = mark ?? null;
    if (!mark) return tell(null);
    mark.classList.add("active");
    const box = mark.getBoundingClientRect();
    tell(String(mark.__data__.tooltip), box.x + box.width / 2, box.y);
  }

  plot.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return point(null);
    const all = marks();
    const place = all.indexOf(active);
    const to = { ArrowRight: place + 1, ArrowDown: place + 1, Home: 0, End: all.length - 1,
      ArrowLeft: Math.max(place, 1) - 1, ArrowUp: Math.max(place, 1) - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    point(all[Math.min(to, all.length - 1)]);
  });
  plot.addEventListener("blur", () => point(null));
  plot.addEventListener("pointerleave", () => { if (!active) tell(null); });
  figure.querySelectorAll("[data-saves]").forEach((button) => {
    button.addEventListener("click", () => saved(spec, plot.dataset.name, button.dataset.saves));
  });

  let waiting = null;
  new ResizeObserver(() => {
    clearTimeout(waiting);
    if (Math.floor(plot.clientWidth) !== at) waiting = setTimeout(draw, shown ? 120 : 0);
  }).observe(plot);
  redraws.push(draw);
}

// Files look the same whatever the screen is: light, in the size that the specification says.
async function saved(spec, name, format) {
  const { view, finalize } = await embed(document.createElement("div"), spec, themes.light, false);
  const address = format === "svg"
    ? URL.createObjectURL(new Blob([await view.toSVG()], { type: "image/svg+xml" }))
    : await view.toImageURL("png", 2);
  download(address, `${name}.${format}`);
  finalize();
}

function download(address, name) {
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  if (address.startsWith("blob:")) URL.revokeObjectURL(address);
}

function themed(button) {
  const tell = () => {
    button.textContent = isDark() ? "Light" : "Dark";  // what a click brings
    redraws.forEach((draw) => draw());
  };
  try {  // storage may be forbidden for a local file
    const kept = localStorage.getItem("rise-report-theme");
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  } catch { /* the system's choice stays */ }
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    tell();
    try {
      localStorage.setItem("rise-report-theme", root.dataset.theme);
    } catch { /* for this visit only */ }
  });
  system.addEventListener("change", tell);
  tell();
}

document.querySelectorAll("table[data-sortable]").forEach(sortable);
themed(document.getElementById("theme"));
document.querySelectorAll("figure.figure").forEach(charted);
