// Settings as sliders, menus and switches, made from what the worker says of their types.

import { byId, make, showWords, spaced, word } from "./format.js";

const STEPS = 1000;
let listed = "";
const shown = new Map(); // name -> { update, element }

export function scale(low, high, linear) {
  if (linear || low <= 0) return { place: (v) => (STEPS * (v - low)) / (high - low), value: (p) => low + (p / STEPS) * (high - low) };
  const ratio = Math.log(high / low);
  return { place: (v) => (STEPS * Math.log(Math.max(v, low) / low)) / ratio, value: (p) => low * Math.exp((ratio * p) / STEPS) };
}

// `changed(name, word)` is called at every move; a word that is the default is reported as null.
export function showControls(message, changed) {
  const key = JSON.stringify([message.target, message.controls.map((c) => [c.name, c.kind, c.choices])]);
  if (key !== listed) {
    listed = key;
    shown.clear();
    const first = message.controls.filter((c) => c.first), rest = message.controls.filter((c) => !c.first);
    byId("first-controls").replaceChildren(...first.map((c) => one(c, changed)));
    byId("more-controls").replaceChildren(...rest.map((c) => one(c, changed)));
    byId("more").hidden = rest.length === 0;
  }
  for (const control of message.controls) shown.get(control.name)?.update(control);
}

export function markWrong(name) {
  for (const [key, { element }] of shown) element.classList.toggle("wrong", key === name);
}

function one(control, changed) {
  const id = `set-${control.name}`, tell = (value) => changed(control.name, value === control.default ? null : value);
  const label = make("label", { htmlFor: id, textContent: spaced(control.name) });
  const mark = control.compiles ? [make("span", { className: "recompiles", textContent: "⟳", role: "img", ariaLabel: "compiles", title: "Another value changes the program: expect a few seconds." })] : [];
  const row = make("div", { className: "row" }, make("span", { className: "with" }, label, ...mark));
  const element = make("div", { className: "control" }, row);
  const fields = (makers[control.kind] ?? makers.text)(control, id, tell, row, element);
  const sentence = make("p", { className: "sentence", id: `${id}-said` });
  showWords(sentence, control.source.startsWith("paper") ? `${control.sentence} (${control.source})` : control.sentence);
  element.append(sentence);
  fields.field.setAttribute("aria-describedby", `${id}-said`);
  shown.set(control.name, {
    element,
    update(now) {
      element.classList.toggle("changed", now.value !== now.default && now.default !== "auto");
      if (!element.contains(document.activeElement) || document.activeElement.type === "range") fields.set(now);
    },
  });
  return element;
}

const makers = {
  choice(control, id, tell, row) {
    const field = make("select", { id });
    const words = control.auto && !control.choices.includes("auto") ? ["auto", ...control.choices] : control.choices;
    field.append(...words.map((text) => make("option", { value: text, textContent: text })));
    field.onchange = () => tell(field.value);
    row.append(field);
    return { field, set: (now) => (field.value = now.value) };
  },
  switch(control, id, tell, row) {
    const field = make("input", { id, type: "checkbox" });
    field.onchange = () => tell(field.checked ? "True" : "False");
    row.append(field);
    return { field, set: (now) => (field.checked = now.value === "True") };
  },
  text(control, id, tell, row) {
    const field = make("input", { id, className: "box words", autocomplete: "off", maxLength: 200 });
    field.onchange = () => tell(field.value);
    row.append(field);
    return { field, set: (now) => (field.value = now.value) };
  },
  number: (...given) => slider(false, ...given),
  whole: (...given) => slider(true, ...given),
};

function slider(whole, control, id, tell, row, element) {
  const field = make("input", { id, className: "box", inputMode: whole ? "numeric" : "decimal", autocomplete: "off", maxLength: 40 });
  const range = make("input", { type: "range", min: 0, max: STEPS, step: 1, ariaLabel: `${spaced(control.name)}, slider` });
  let along = scale(control.low, control.high, control.linear);
  range.oninput = () => {
    const value = word(along.value(Number(range.value)), whole);
    if (value !== field.value) tell((field.value = value));
  };
  range.onkeydown = (event) => { // one key moves by something that is seen: a whole number, or 5 %
    const way = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (!way) return;
    event.preventDefault();
    const now = Number(field.value) || control.low || 1;
    const next = whole ? Math.max(1, now + way * Math.max(1, Math.round(now * 0.1))) : control.linear ? Math.min(1, Math.max(0, now + way * 0.05)) : now * 1.1 ** way;
    field.value = word(next, whole);
    range.value = along.place(Number(field.value));
    tell(field.value);
  };
  field.onchange = () => tell(field.value.trim());
  row.append(field);
  element.append(range);
  return {
    field,
    set(now) {
      along = scale(now.low, now.high, now.linear);
      if (document.activeElement !== range) range.value = along.place(Number(now.value));
      if (document.activeElement !== field) field.value = now.value;
    },
  };
}
