// When pictures are drawn. While a run plays, a few a second leave the cores to the training.

import { drawAttention, drawPlane, drawProbes, drawRisk, drawSpectrum } from "./charts.js";
import { page } from "./page.js";

const PAUSE = 250, MOST_POINTS = 1500;
let waiting = false, drawnAt = 0;

export function redraw() {
  if (waiting) return;
  waiting = true;
  const wait = page.status.playing ? Math.max(0, PAUSE - (performance.now() - drawnAt)) : 0;
  setTimeout(() => requestAnimationFrame(draw), wait);
}

function draw() {
  waiting = false;
  drawnAt = performance.now();
  const { run, status } = page;
  const shown = status.playing ? thinned(run) : {};
  drawRisk({ ...run, ...shown, pins: page.pins.filter((pin) => pin.step), changes: status.changes });
  drawProbes({ ...run, recorded: page.known.recorded, chosen: page.state.probes });
}

// More points than pixels help nobody while the curve still grows; when it rests, all are drawn.
function thinned({ step, risk }) {
  const stride = Math.ceil(step.length / MOST_POINTS), keep = (_, k) => k % stride === 0 || k === step.length - 1;
  return { step: step.filter(keep), risk: risk.filter(keep) };
}

export function redrawAll() {
  redraw();
  drawSpectrum(page.latest.spectrum);
  drawAttention(page.latest.attention ?? null);
  if (page.latest.plane) drawPlane(page.latest.plane);
}
