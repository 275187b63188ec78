// The step size: a slider with the marks that matter.

import { setStep } from "./asking.js";
import { scale } from "./controls.js";
import { byId, make, number, spaced, word } from "./format.js";
import { alarm } from "./notices.js";
import { page } from "./page.js";

let along = null;

export function showStep() {
  const { marks } = page, middle = marks.edge ?? (marks.usual ? 4 * marks.usual : null);
  if (!middle || !marks.now) return;
  const all = [marks.now, marks.largest, marks.usual].filter((v) => v > 0);
  along = scale(Math.min(middle / 1000, ...all), Math.max(middle * 4, ...all), false);
  const slider = byId("step-slider"), box = byId("step-box");
  if (document.activeElement !== slider) slider.value = along.place(marks.now);
  if (document.activeElement !== box) box.value = marks.now < 1e-3 ? marks.now.toExponential(3) : String(Number(marks.now.toPrecision(4)));
  const lines = [
    ["largest", `largest that ${page.run.theorem ? spaced(page.run.theorem) : "the theorem"} allows`, "--bound"],
    ["edge", "2 / sharpness: unstable beyond", "--bad"],
    ["usual", "default", "--accent"],
  ];
  byId("step-ticks").replaceChildren(...lines.filter(([key]) => marks[key]).map(([key, , colour]) => tick(marks[key], colour)));
  byId("step-marks").replaceChildren(...lines.map(([key, text, colour]) => button(marks[key], text, colour)));
}

function tick(value, colour) {
  const made = make("span");
  made.style.left = `calc(8px + (100% - 16px) * ${along.place(value) / 1000})`;
  made.style.background = `var(${colour})`;
  return made;
}

function button(value, text, colour) {
  const sign = make("i");
  sign.style.background = `var(${colour})`;
  const made = make("button", { className: "plain", title: "Use this step size", disabled: !value }, sign, make("span", { textContent: text }), make("b", { textContent: value ? number(value) : value === undefined ? "…" : "none" }));
  made.onclick = () => setStep(value);
  return made;
}

export function wireStep() {
  byId("step-slider").addEventListener("input", () => {
    if (!along) return;
    const value = Number(word(along.value(Number(byId("step-slider").value)), false));
    byId("step-box").value = String(value);
    setStep(value);
  });
  byId("step-box").addEventListener("change", () => {
    const value = Number(byId("step-box").value);
    if (value > 0) setStep(value);
    else alarm("step size: expected a number above 0.");
  });
}
