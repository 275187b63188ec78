// Curves, spectrum and plane by Plotly; attention on small canvases with one scale for both sides.

import { byId, make, number, spaced } from "./format.js";

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const options = { responsive: true, displayModeBar: false };
export const ghosts = ["--ghost-1", "--ghost-2", "--ghost-3"], dashes = ["dash", "dot", "dashdot"];

function axis(text, more = {}) {
  return { title: { text, standoff: 8 }, gridcolor: style("--line"), linecolor: style("--line"), zerolinecolor: style("--line"), exponentformat: "power", automargin: true, ...more };
}

let revision = 0;
function layout(x, y, more = {}) {
  revision += 1; // arrays grow in place, and Plotly compares them by identity
  return { datarevision: revision, font: { color: style("--ink"), size: 12, family: "system-ui, 'Segoe UI', sans-serif" }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { t: 12, r: 12, b: 44, l: 58 }, xaxis: axis(x), yaxis: axis(y), showlegend: false, hovermode: "closest", ...more };
}

function ready() {
  return globalThis.Plotly !== undefined;
}

// A log axis with few, readable ticks.
function logarithmic(values) {
  const seen = values.filter((v) => v > 0);
  if (!seen.length) return { type: "log" };
  const low = Math.min(...seen.slice(0, 20000)), high = Math.max(...seen.slice(0, 20000)), decades = Math.log10(high / low);
  if (decades > 1.5) return { type: "log", dtick: Math.max(1, Math.ceil(decades / 6)) };
  const few = places(low, high, [1, 2, 5]), some = few.length > 2 ? few : places(low, high, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
  const ticks = some.length > 1 ? some : places(low, high, Array.from({ length: 90 }, (_, k) => 1 + k / 10)).filter((_, k, all) => k % Math.ceil(all.length / 4) === 0);
  if (ticks.length < 2) return { type: "log", nticks: 4 };
  return { type: "log", tickvals: ticks, ticktext: ticks.map((tick) => number(tick)) };
}

// Multiples of powers of ten between two numbers.
function places(low, high, multiples) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) found.push(...multiples.map((k) => Number(`${Number(k.toFixed(1))}e${power}`)));
  return found.filter((tick) => tick >= low * 0.98 && tick <= high * 1.02);
}

// The range of a log axis with room for a line of words above all curves.
function roomAbove(traces) {
  let low = Infinity, high = 0;
  for (const value of traces.flatMap((t) => t.y)) if (value > 0) [low, high] = [Math.min(low, value), Math.max(high, value)];
  if (!high) return {};
  const decades = Math.max(Math.log10(high / low), 0.1);
  return { range: [Math.log10(low) - 0.05 * decades, Math.log10(high) + 0.15 * decades] };
}

export function drawRisk(view) {
  if (!ready()) return;
  const traces = [], shapes = [], notes = [];
  view.pins.forEach((pin, k) => traces.push({ x: pin.step, y: pin.risk, name: `pinned ${k + 1}`, mode: "lines", line: { color: style(ghosts[k % 3]), dash: dashes[k % 3], width: 1.8 } }));
  if (view.before && !view.step.length) traces.push({ x: view.before.step, y: view.before.risk, name: "before the change", mode: "lines", opacity: 0.35, line: { color: style("--soft"), width: 2 } });
  if (view.prediction) traces.push({ x: view.prediction.step, y: view.prediction.y, name: "kernel at the start predicts", mode: "lines", line: { color: style("--guess"), dash: "dot", width: 2 } });
  for (const [name, curve] of Object.entries(view.bounds)) traces.push({ x: curve.step, y: curve.y, name: view.theorem ? `${spaced(view.theorem)}: ${name}` : name, mode: "lines", line: { color: style("--bound"), dash: "dash", width: 2 } });
  traces.push({ x: view.step, y: view.risk, name: "measured", mode: view.step.length < 3 ? "lines+markers" : "lines", line: { color: style("--curve"), width: 2.6 } });
  if (view.proof) {
    shapes.push({ type: "rect", xref: "x", yref: "paper", x0: view.proof.step, x1: Math.max(view.total, view.proof.step), y0: 0, y1: 1, line: { width: 0 }, fillcolor: style("--good-soft"), layer: "below" });
    notes.push({ x: view.proof.step, y: 1, xref: "x", yref: "paper", xanchor: view.proof.step > view.total / 2 ? "right" : "left", yanchor: "top", showarrow: false, text: `proved from here: ${view.proof.verdict}`, bgcolor: style("--good-soft"), font: { color: style("--good") } });
  }
  for (const [at, size] of view.changes) {
    shapes.push({ type: "line", xref: "x", yref: "paper", x0: at, x1: at, y0: 0, y1: 1, line: { color: style("--soft"), dash: "dot", width: 1 } });
    notes.push({ x: at, y: 0, xref: "x", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false, text: `step size ${number(size, 3)}`, font: { color: style("--soft"), size: 11 } });
  }
  const values = traces.flatMap((t) => [t.y[0], t.y.at(-1), ...t.y.filter((_, k) => k % 50 === 0)]).filter((v) => v !== null);
  const frame = layout("step", "risk", { shapes, annotations: notes, showlegend: traces.length > 1, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, margin: { t: 34, r: 12, b: 44, l: 64 } });
  frame.yaxis = axis("risk", { ...logarithmic(values), ...(view.proof ? roomAbove(traces) : {}) });
  frame.xaxis.range = [0, Math.max(view.total, 1)];
  globalThis.Plotly.react(byId("risk"), traces, frame, options);
}

const lowered = (name) => name.replace(/^([A-Za-z])_([A-Za-z0-9]{1,4})$/, "$1<sub>$2</sub>");

// One plot for each probe; the parts of one probe are together.
export function drawProbes(view) {
  if (!ready()) return;
  const groups = new Map();
  for (const name of Object.keys(view.curves)) {
    if (name === "risk") continue;
    const owner = view.recorded.filter((probe) => name === probe || name.startsWith(`${probe}_`)).sort((a, b) => b.length - a.length)[0] ?? name;
    groups.set(owner, [...(groups.get(owner) ?? []), name]);
  }
  const place = byId("probe-plots");
  const names = view.chosen.filter((probe) => groups.has(probe));
  if (JSON.stringify([...place.children].map((c) => c.dataset.probe)) !== JSON.stringify(names)) {
    place.replaceChildren(...names.map((name) => {
      const card = make("div", { className: "card" }, make("b", { textContent: spaced(name) }), make("div", { className: "plot" }));
      card.dataset.probe = name;
      return card;
    }));
  }
  for (const card of place.children) {
    const parts = groups.get(card.dataset.probe), colours = ["--curve", "--bound", "--guess", ...ghosts];
    const traces = parts.map((name, k) => ({ x: view.step, y: view.curves[name], name: lowered(name.slice(card.dataset.probe.length + 1)) || "value", mode: "lines", line: { color: style(colours[k % 6]), dash: ["solid", "dash", "dot", "dashdot", "longdash", "solid"][k % 6], width: 2 } }));
    const all = traces.flatMap((t) => t.y).filter((v) => v !== null), low = Math.min(...all), high = Math.max(...all);
    const frame = layout("step", spaced(card.dataset.probe), { showlegend: traces.length > 1, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" } });
    if (low > 0 && high > 30 * low) frame.yaxis = axis(spaced(card.dataset.probe), logarithmic(all));
    frame.xaxis.range = [0, Math.max(view.total, 1)];
    globalThis.Plotly.react(card.lastChild, traces, frame, options);
  }
}

export function drawSpectrum(message) {
  if (!ready()) return;
  const place = byId("spectrum");
  if (!message?.start) return globalThis.Plotly.react(place, [], layout("", "", { xaxis: { visible: false }, yaxis: { visible: false }, annotations: [{ text: message ? "too large to show here" : "being measured …", showarrow: false }] }), options);
  const curve = (values, name, colour, symbol) => ({ x: values.map((_, k) => k + 1), y: values, name, mode: "markers", marker: { color: style(colour), symbol, size: 7, line: { width: 1.5, color: style(colour) } } });
  const traces = [curve(message.start, "at the start", "--ghost-2", "circle-open")];
  if (message.now) traces.push(curve(message.now, `at step ${message.at}`, "--curve", "circle"));
  const all = traces.flatMap((t) => t.y);
  const frame = layout("number of the eigenvalue", "eigenvalue", { showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, margin: { t: 30, r: 12, b: 44, l: 58 } });
  if (message.start.length <= 12) frame.xaxis.dtick = 1;
  if (Math.min(...all) > 0) frame.yaxis = axis("eigenvalue", logarithmic(all));
  globalThis.Plotly.react(place, traces, frame, options);
}

export function drawPlane(message) {
  if (!ready()) return;
  byId("landscape").hidden = false;
  const heights = message.values.map((row) => row.map((v) => (v > 0 ? Math.log10(v) : null)));
  const traces = [{ type: "contour", x: message.grid, y: message.grid, z: heights, colorscale: "Viridis", ncontours: 20, contours: { coloring: "heatmap" }, line: { width: 0.4 }, colorbar: { title: { text: "log₁₀ risk", side: "right" }, thickness: 12 } }];
  if (message.path) traces.push({ x: message.path.x, y: message.path.y, mode: "lines", name: "path", line: { color: "#ffffff", width: 2.4 } }, { x: [message.path.x.at(-1)], y: [message.path.y.at(-1)], mode: "markers", marker: { color: "#d55e00", size: 9, line: { color: "#fff", width: 1 } } });
  globalThis.Plotly.react(byId("landscape"), traces, layout("second direction", "first direction", { margin: { t: 10, r: 10, b: 44, l: 50 } }), options);
}

// ------------------------------------------------------------------------------------ attention

const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;

function shade(share) {
  const [from, to] = isDark() ? [[15, 21, 27], [120, 205, 255]] : [[255, 255, 255], [0, 60, 110]];
  return from.map((c, k) => Math.round(c + share * (to[k] - c)));
}

function canvas(values, top, name) {
  const rows = values.length, columns = values[0].length;
  const place = make("canvas", { width: columns, height: rows, role: "img", ariaLabel: `${name}: ${rows} by ${columns} weights, largest ${number(Math.max(...values.flat()))}` });
  const pen = place.getContext("2d"), image = pen.createImageData(columns, rows);
  values.flat().forEach((v, k) => {
    const [r, g, b] = shade(Math.max(0, Math.min(1, (v ?? 0) / top)));
    image.data.set([r, g, b, 255], 4 * k);
  });
  pen.putImageData(image, 0, 0);
  place.style.aspectRatio = `${columns} / ${Math.max(rows, columns / 4)}`;
  place.onmousemove = (event) => {
    const box = place.getBoundingClientRect();
    const row = Math.min(rows - 1, Math.floor(((event.clientY - box.top) / box.height) * rows)), column = Math.min(columns - 1, Math.floor(((event.clientX - box.left) / box.width) * columns));
    place.title = `from ${row + 1} to token ${column + 1}: ${number(values[row]?.[column])}`;
  };
  return place;
}

export function drawAttention(message) {
  const place = byId("attention");
  if (!message) return; // being measured
  if (!message.start.maps.length) return place.replaceChildren(make("p", { className: "sentence", textContent: "No softmax attention was found in this model." }));
  const [least, most] = isDark() ? ["dark", "bright"] : ["white", "blue"];
  place.replaceChildren(...message.start.maps.map((start, k) => {
    const now = message.now?.maps[k], top = Math.max(...start.flat(), ...(now?.flat() ?? []), 2 / start[0].length); // uniform is half-way at most
    const sides = [make("div", { className: "map" }, canvas(start, top, "at the start"), make("span", { textContent: "at the start" }))];
    if (now) sides.push(make("div", { className: "map" }, canvas(now, top, `at step ${message.at}`), make("span", { textContent: `at step ${message.at}` })));
    return make("div", {}, make("span", { className: "sentence", textContent: `${message.start.names[k]}; ${least} is 0, ${most} ${number(top, 3)}` }), make("div", { className: "maps" }, ...sides));
  }));
}
