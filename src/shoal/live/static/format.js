// Numbers with sensible digits, and small helpers for the page. Text is always set as text.

export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) {
    const [head, power] = value.toExponential(digits - 2).split("e");
    return `${Number(head)}·10${superscript(Number(power))}`;
  }
  return String(Number(value.toPrecision(digits)));
}

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
