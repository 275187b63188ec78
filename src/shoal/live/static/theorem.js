// The theorem: formula, hypotheses as gauges, verdict in words, and what would help.

import { byId, make, number, showMaths, showWords } from "./format.js";

const LOOKS = { holds: ["good", "✓"], "applies so far": ["good", "✓"], violated: ["bad", "✗"], "not applicable": ["bad", "✗"], unresolved: ["unsure", "?"] };

export function showStatement(message) {
  showWords(byId("statement"), message.statement);
  showMaths(byId("formula"), message.formula);
  fitFormula();
  byId("source").textContent = message.source ? `Source: ${message.source}.` : "";
}

// A formula that is too wide is set smaller, rather than cut off; a very long one can be scrolled.
export function fitFormula() {
  const place = byId("formula");
  for (let size = 1.2; size >= 0.8; size -= 0.05) {
    place.style.fontSize = `${size}rem`;
    if (place.scrollWidth <= place.clientWidth) return;
  }
}

export function showTheorems(message, chosen) {
  const menu = byId("theorems");
  const options = message.theorems.map((t) => make("option", { value: t.key, textContent: t.key.replaceAll("_", " ") }));
  if (JSON.stringify([...menu.options].map((o) => o.value)) !== JSON.stringify(message.theorems.map((t) => t.key))) menu.replaceChildren(...options);
  menu.value = chosen;
}

export function showGauges(message) {
  const [look, sign] = LOOKS[message.verdict] ?? ["unsure", "–"];
  const badge = byId("verdict").querySelector(".badge");
  badge.className = `badge ${look}`;
  badge.textContent = message.verdict ? `${sign} ${message.verdict}` : "no theorem";
  byId("verdict").querySelector("p").textContent = message.words;
  fill(byId("hypotheses"), message.hypotheses);
  byId("conclusions-part").hidden = !(message.conclusions ?? []).length;
  fill(byId("conclusions"), message.conclusions ?? []);
  const [proved, measured] = message.rates ?? [];
  const parts = [];
  if (proved !== null && proved !== undefined && !["not applicable", "unresolved"].includes(message.verdict)) parts.push(`proved ${number(proved)}`);
  if (measured !== null && measured !== undefined) parts.push(`measured ${number(measured)}`);
  byId("rates").textContent = parts.length ? `Share of the risk lost per step: ${parts.join(", ")}.` : "";
}

function fill(list, lines) {
  while (list.children.length > lines.length) list.lastChild.remove();
  lines.forEach((line, k) => draw(list.children[k] ?? list.appendChild(blankGauge()), line));
}

function blankGauge() {
  return make("li", { className: "gauge" },
    make("div", { className: "name" }, make("span", { className: "sign" }), make("span", { className: "text" })),
    make("div", { className: "bar" }, make("i")),
    make("div", { className: "sides" }, make("span", { className: "both" }), make("span", { className: "margin" })));
}

function draw(item, line) {
  const look = line.holds === true ? "good" : line.holds === false ? "bad" : "unsure";
  item.className = `gauge ${look}`;
  item.querySelector(".sign").textContent = { good: "✓", bad: "✗", unsure: "?" }[look];
  const name = item.querySelector(".text");
  if (item.dataset.name !== line.name) showWords(name, (item.dataset.name = line.name));
  const bar = item.querySelector(".bar"), plain = line.yes_or_no;
  bar.hidden = plain || line.relation === "=";
  const fill = bar.firstChild, along = position(line.lhs, line.rhs);
  fill.hidden = line.holds === null && !(finite(line.lhs) && finite(line.rhs));
  fill.style.left = `${50 + Math.min(0, along)}%`;
  fill.style.right = `${50 - Math.max(0, along)}%`;
  const words = line.holds === null ? "undecided" : line.holds ? "yes" : "no";
  item.querySelector(".both").textContent = plain ? words : sides(line);
  const margin = line.margin;
  item.querySelector(".margin").textContent = plain || margin === null || !(finite(line.lhs) && finite(line.rhs)) ? "" : `margin ${margin > 0 ? "+" : margin < 0 ? "−" : ""}${number(Math.abs(margin), 3)}`;
  item.dataset.margin = margin ?? "";
}

// the least positive float stands for 0 in "0 < x"
const none = (value) => value !== null && Math.abs(value) < 1e-300;
const finite = (value) => value !== null;
const side = (value) => number(none(value) ? 0 : value);
// a sign between numbers that are not finite would say nothing
function sides(line) {
  if (finite(line.lhs) && finite(line.rhs)) return `${side(line.lhs)} ${relation(line)} ${side(line.rhs)}`;
  return `${finite(line.rhs) ? "left side" : finite(line.lhs) ? "right side" : "both sides"} not finite`;
}
// the sign that is true of both sides: of a hypothesis that fails, the opposite one
const signs = { "=": ["=", "≠"], "<": ["<", "≥"], "≤": ["≤", ">"] };
const relation = (line) => (line.holds === null ? "against" : signs[line.relation === "=" ? "=" : none(line.lhs) && line.lhs > 0 ? "<" : "≤"][line.holds ? 0 : 1]);

// Left of the middle by how many decades the left side is below the right one, at most four; else right.
function position(lhs, rhs) {
  if (lhs === null || rhs === null) return 50;
  if (lhs <= 0 && rhs > lhs) return -50;
  if (rhs <= 0) return 50;
  const decades = Math.log10(lhs / rhs);
  return Math.sign(decades) * Math.min(50, 3 + (Math.abs(decades) * 47) / 4);
}

export function showAdvice(message, apply) {
  const place = byId("advice");
  place.hidden = !message || (!message.changes.length && !message.hints.length);
  if (place.hidden) return;
  const items = message.changes.map((change) => {
    const button = make("button", { className: "plain", textContent: change.text });
    button.onclick = () => apply(change);
    return make("li", {}, button);
  });
  const hints = message.hints.map((text) => make("li", { textContent: text }));
  const lead = message.changes.length ? "What would help (tried, one at a time):" : "No single number that was tried helps.";
  place.replaceChildren(make("b", { textContent: lead }), make("ul", {}, ...items, ...hints));
}
