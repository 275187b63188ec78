"use strict";
// With --interactive: the same panels drawn by plotly, to zoom and to turn.
const panels = JSON.parse(document.getElementById("panels").textContent);
const dashes = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// W_Q as on the other pages; what could be markup stays as it is
const lowered = (name) => name.replace(/^([A-Za-z])_([A-Za-z0-9]{1,4})$/, "$1<sub>$2</sub>");

function layout(panel) {
  const axis = (text, log) => ({ title: { text, standoff: 8 }, type: log ? "log" : "linear", gridcolor: style("--line"), linecolor: style("--line"), zerolinecolor: style("--line"), exponentformat: "power", automargin: true });
  const shapes = panel.limits.map(([, y]) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: style("--limit"), dash: "dash" } }));
  return { shapes, font: { color: style("--ink"), size: 12 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { t: 10, r: 10, b: 45, l: 60 }, xaxis: axis(panel.x_label, panel.log_x), yaxis: axis(panel.y_label || panel.title, panel.log_y), legend: { orientation: "h", y: -0.25 }, showlegend: panel.curves.length > 1 };
}

function traces(panel) {
  const found = [];
  panel.curves.forEach((curve, k) => {
    const colour = style(`--k${k % 6}`);
    if (!panel.points) found.push({ x: curve.x.concat([...curve.x].reverse()), y: curve.high.concat([...curve.low].reverse()), fill: "toself", fillcolor: colour + "26", line: { width: 0 }, hoverinfo: "skip", showlegend: false, mode: "lines" });
    found.push({ x: curve.x, y: curve.y, name: lowered(curve.label), mode: panel.points ? "markers" : curve.x.length <= 12 ? "lines+markers" : "lines", line: { color: colour, dash: dashes[k % 6], width: 2 } });
  });
  for (const image of panel.images.slice(0, 1)) found.push({ z: image.values, type: "heatmap", colorscale: "Cividis", zmin: panel.ends[0], zmax: panel.ends[1] });
  if (panel.surface) found.unshift({ x: panel.surface.x, y: panel.surface.y, z: panel.surface.values, colorscale: "Cividis", ...(panel.solid ? { type: "surface", showscale: false } : { type: "contour", ncontours: 24, contours: { coloring: "heatmap" } }) });
  return found;
}

function draw() {
  for (const place of document.querySelectorAll(".chart[data-chart]")) {
    const panel = panels[Number(place.dataset.chart)], frame = layout(panel);
    let box = place.querySelector(".plotly-box");
    if (!box) {
      place.querySelectorAll("svg, .legend").forEach((part) => part.remove());
      box = place.appendChild(Object.assign(document.createElement("div"), { className: "plotly-box" }));
      box.style.height = "20rem";
    }
    if (panel.images.length) frame.yaxis.autorange = "reversed";
    Plotly.react(box, traces(panel), frame, { responsive: true, displayModeBar: false });
  }
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
document.querySelectorAll("details").forEach((item) => item.addEventListener("toggle", () => dispatchEvent(new Event("resize"))));
draw();
