// Runs that stay as ghosts, listed with what differs from the present settings.

import { differences } from "./address.js";
import { look, tell } from "./asking.js";
import { dashes, ghosts } from "./charts.js";
import { redraw } from "./drawing.js";
import { byId, make, number } from "./format.js";
import { writeAddress } from "./link.js";
import { said } from "./notices.js";
import { page } from "./page.js";

const MOST = 6, SVG = "http://www.w3.org/2000/svg";
const STROKES = { dash: "7 4", dot: "2 3", dashdot: "7 3 2 3" };

// The state with the theorem that is compared, named also where it was not chosen.
const present = () => ({ ...page.state, theorem: page.run.theorem ?? "" });

export function addPin() {
  const { run, status } = page;
  if (!run.step.length) return said("Nothing to pin yet: press Play first.");
  const pin = { state: structuredClone(present()), at: status.at, step: [...run.step], risk: [...run.risk], slot: String(Date.now()) };
  if (page.pins.some((other) => other.at === pin.at && !differences(other.state, pin.state).length)) return said("This curve is pinned already.");
  use([...page.pins.slice(-(MOST - 1)), pin]);
}

function use(pins) {
  page.pins = pins;
  showPins();
  redraw();
  writeAddress();
}

// The curve of a pinned run that came with a link.
export function takePin(message) {
  const pin = page.pins.find((one) => one.slot === message.slot);
  if (!pin) return;
  pin.step = message.step;
  pin.risk = message.risk;
  showPins();
  redraw();
}

export function askForPins() {
  for (const pin of page.pins) tell({ do: "pin", state: pin.state, steps: pin.at, slot: pin.slot });
}

export function showPins() {
  byId("pins").replaceChildren(...page.pins.map(one));
}

function one(pin, k) {
  const differs = differences(present(), pin.state), last = pin.risk?.findLast((v) => v !== null);
  const text = make("span", { textContent: `pinned ${k + 1}: ${differs.length ? differs.join(", ") : "the same settings"}; risk ${number(last)} at step ${pin.at}` });
  const back = make("button", { className: "plain", textContent: "go back to it" }), away = make("button", { className: "plain", textContent: "remove", ariaLabel: `remove pinned ${k + 1}` });
  back.onclick = () => {
    page.state = structuredClone(pin.state);
    look({ reset: true, goal: pin.at });
  };
  away.onclick = () => use(page.pins.filter((other) => other !== pin));
  return make("div", { className: "pinned" }, sample(k), text, back, away);
}

// A piece of the ghost's line, as in the plot.
function sample(k) {
  const picture = document.createElementNS(SVG, "svg"), line = document.createElementNS(SVG, "line");
  for (const [name, value] of [["width", 26], ["height", 8], ["aria-hidden", "true"]]) picture.setAttribute(name, value);
  for (const [name, value] of [["x1", 0], ["x2", 26], ["y1", 4], ["y2", 4], ["stroke-width", 2.5]]) line.setAttribute(name, value);
  line.style.stroke = `var(${ghosts[k % 3]})`;
  line.style.strokeDasharray = STROKES[dashes[k % 3]];
  picture.append(line);
  return picture;
}
