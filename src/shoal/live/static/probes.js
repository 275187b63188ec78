// Which probes are recorded beside the risk.

import { look } from "./asking.js";
import { byId, make, showWords, spaced } from "./format.js";
import { page } from "./page.js";

export function showProbes(probes) {
  const list = byId("probe-list"), names = probes.map((probe) => probe.name);
  if (JSON.stringify([...list.children].map((c) => c.dataset.name)) !== JSON.stringify(names)) list.replaceChildren(...probes.map(one));
  for (const box of list.querySelectorAll("input")) box.checked = page.state.probes.includes(box.value);
}

function one(probe) {
  const box = make("input", { type: "checkbox", value: probe.name });
  box.onchange = () => {
    page.state.probes = [...byId("probe-list").querySelectorAll("input:checked")].map((b) => b.value);
    look();
  };
  const sentence = make("small");
  showWords(sentence, probe.sentence);
  const label = make("label", {}, box, make("span", {}, spaced(probe.name), sentence));
  label.dataset.name = probe.name;
  return label;
}
