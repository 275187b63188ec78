"use strict";
// Numbers where a reader points, curves that a legend hides, frames that a slider moves.
document.documentElement.classList.add("js");
const tip = document.body.appendChild(Object.assign(document.createElement("div"), { className: "tip hidden" }));

function axis(low, high, start, end, log) {
  const at = log ? Math.log10 : (v) => v;
  return (v) => start + ((at(v) - at(low)) / (at(high) - at(low))) * (end - start);
}

function reader(svg) {
  const s = svg.dataset.scale.split(" ").map(Number);
  const x = axis(...s.slice(0, 5)), y = axis(...s.slice(5, 10));
  const curves = [...svg.querySelectorAll("g[data-k]")].map((g) => {
    const xs = g.dataset.x.split(" ").map(Number), ys = g.dataset.y.split(" ").map(Number);
    return { g, xs, ys, px: xs.map(x), py: ys.map(y) };
  });
  return { curves, top: s[8], bottom: s[7], name: svg.querySelectorAll("text.name")[1]?.textContent || "x" };
}

function tell(svg, at, place) {
  const { curves, top, bottom, name } = (svg.reader ??= reader(svg));
  const shown = curves.filter((c) => !c.g.classList.contains("hidden") && c.px.length);
  if (!shown.length) return;
  const nearest = shown.map((c) => c.px.reduce((best, p, k) => (Math.abs(p - at) < Math.abs(c.px[best] - at) ? k : best), 0));
  const lines = shown.map((c, k) => `${c.g.dataset.name}: ${c.ys[nearest[k]]}`);
  tip.textContent = [`${name} ${shown[0].xs[nearest[0]]}`, ...lines.slice(0, 8)].join("\n");
  const line = (svg.cursor ??= svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path")));
  line.setAttribute("class", "cursor");
  line.setAttribute("d", `M${shown[0].px[nearest[0]]} ${top}V${bottom}`);
  svg.place = shown[0].px[nearest[0]];
  tip.classList.remove("hidden");
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = `${Math.max(4, Math.min(place.x + 14, room)) + scrollX}px`;
  tip.style.top = `${place.y + 14 + scrollY}px`;
}

function quiet(svg) {
  tip.classList.add("hidden");
  svg.cursor?.setAttribute("class", "cursor hidden");
}

for (const svg of document.querySelectorAll("svg[data-scale]")) {
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    tell(svg, ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width, { x: event.clientX, y: event.clientY });
  });
  svg.addEventListener("pointerleave", () => quiet(svg));
  svg.addEventListener("blur", () => quiet(svg));
  svg.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way) return;
    event.preventDefault();
    const box = svg.getBoundingClientRect(), first = (svg.reader ??= reader(svg)).curves[0];
    if (!first) return;
    const now = svg.place === undefined ? -1 : first.px.indexOf(svg.place);
    const next = Math.max(0, Math.min(first.px.length - 1, now + way));
    tell(svg, first.px[next], { x: box.left + (first.px[next] / svg.viewBox.baseVal.width) * box.width, y: box.top + box.height / 2 });
  });
}

for (const button of document.querySelectorAll(".legend button"))
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", on);
    button.closest(".chart").querySelector(`g[data-k="${button.dataset.k}"]`)?.classList.toggle("hidden", !on);
  });

for (const film of document.querySelectorAll(".film")) {
  const frames = [...film.querySelectorAll(".frame")];
  const input = Object.assign(document.createElement("input"), { type: "range", min: 0, max: frames.length - 1, value: 0 });
  input.setAttribute("aria-label", "step");
  const show = () => frames.forEach((frame, k) => frame.classList.toggle("now", k === Number(input.value)));
  input.addEventListener("input", show);
  film.append(input);
  show();
}
