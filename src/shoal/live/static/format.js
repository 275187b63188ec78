// Numbers with sensible digits, and small helpers for the page. Text is always set as text.

export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) {
    const [head, power] = value.toExponential(digits - 2).split("e");
    return `${minus(Number(head))}·10${superscript(Number(power))}`;
  }
  return minus(Number(value.toPrecision(digits)));
}

const minus = (value) => String(value).replace("-", "−");

function superscript(power) {
  const signs = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  return (power < 0 ? "⁻" : "") + [...String(Math.abs(power))].map((c) => signs[c]).join("");
}

// A number as a word that a setting takes: short, and exact enough for a slider.
export function word(value, whole) {
  return whole ? String(Math.round(value)) : String(Number(value.toPrecision(3)));
}

export function make(tag, given = {}, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name in found && name !== "list") found[name] = value;
    else found.setAttribute(name, value);
  }
  found.append(...children);
  return found;
}

export const byId = (id) => document.getElementById(id);
export const spaced = (name) => name.replaceAll("_", " ");

// Words as they are set in print: indices lowered, powers raised, Greek letters by their signs.
const GREEK = { alpha: "α", beta: "β", gamma: "γ", delta: "δ", eta: "η", kappa: "κ", lambda: "λ", mu: "μ", rho: "ρ", sigma: "σ", phi: "φ", chi: "χ", tau: "τ", epsilon: "ε", theta: "θ", omega: "ω" };
const LETTERS = Object.keys(GREEK).join("|");
const SET = new RegExp(`\`([^\`]+)\`|\\b(${LETTERS}|[A-Za-z])_(t\\+1|[A-Za-z0-9]{1,4})\\b|(?<=[\\w)|])\\^(-?\\w+(?:[/.]\\d+)?|\\(-?\\w+(?:[/.]\\d+)?\\))|\\b(${LETTERS})\\b|(<=|>=)|(?<=[\\w)]) ([-*]) (?=[\\w(])|\\b(max|min)_([A-Za-z])\\b|(?<![\\w.)\\]-])-(?=\\.?\\d)`, "g");
export function showWords(place, text) {
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(SET)) {
    const [whole, code, base, index, power, letter, sign, operator, extreme, over] = found;
    nodes.push(text.slice(end, found.index));
    if (code) nodes.push(make("code", { textContent: code }));
    else if (base) nodes.push(make("i", { textContent: GREEK[base] ?? base }), make("sub", { textContent: index }));
    else if (power) nodes.push(make("sup", { textContent: power.replace(/[()]/g, "").replace("-", "−") }));
    else if (operator) nodes.push(operator === "-" ? " − " : " · ");
    else if (extreme) nodes.push(extreme, make("sub", { textContent: over }));
    else if (whole === "-") nodes.push("−");
    else nodes.push(letter ? GREEK[letter] : sign === "<=" ? "≤" : "≥");
    end = found.index + whole.length;
  }
  place.replaceChildren(...nodes, text.slice(end));
}

// Words with MathML from the server: only elements of MathML are taken over, everything else as text.
const MATHS = "http://www.w3.org/1998/Math/MathML";
export function showMaths(place, html) {
  const parsed = new DOMParser().parseFromString(html, "text/html");
  const copy = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return document.createTextNode(node.data);
    if (node.namespaceURI !== MATHS) return document.createTextNode(node.textContent);
    const made = document.createElementNS(MATHS, node.localName);
    for (const { name, value } of node.attributes) if (!name.startsWith("on") && !name.includes("href")) made.setAttribute(name, value);
    made.append(...[...node.childNodes].map(copy));
    return made;
  };
  place.replaceChildren(...[...parsed.body.childNodes].map(copy));
}
