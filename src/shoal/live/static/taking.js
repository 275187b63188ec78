// What goes in and out: a data file that is dropped; link, command, script, run folder and page.

import { look, tell } from "./asking.js";
import { byId, make } from "./format.js";
import { upload } from "./line.js";
import { writeAddress } from "./link.js";
import { alarm, said } from "./notices.js";
import { lab, page } from "./page.js";

async function takeFile(file) {
  if (!file) return;
  const name = file.name.slice(0, 80), note = byId("data-note");
  note.textContent = `Reading ${name} …`;
  const answer = await upload(file);
  if (answer.error) {
    note.textContent = answer.error;
    return alarm(answer.error);
  }
  const shapes = Object.entries(answer.arrays).map(([array, shape]) => `${array} ${shape.join(" × ")}`).join(", ");
  note.textContent = `Using ${name}: ${shapes}.`;
  for (const size of ["num_samples", "num_tokens", "dim", "out_dim", "problem"]) delete page.state.values[size];
  page.state.data = answer.data;
  page.state.changes = [];
  look({ reset: true, goal: Infinity });
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    said(`Copied the ${what}.`);
  } catch {
    byId("command").textContent = text;
    said(`The browser does not allow copying; the ${what} is below.`);
  }
  lab.copied = text;
}

function errand(name, text) {
  said(`${text} …`);
  tell({ do: name, state: page.state, steps: page.status.at });
}

export function showTexts(message) {
  page.texts = message;
  byId("command").textContent = message.command || "The step size was changed on the way: copy Python repeats it.";
  byId("copy-command").disabled = !message.command;
}

export function showReport(message) {
  const link = make("a", { href: `pages/${encodeURIComponent(message.page)}`, target: "_blank", rel: "noopener", textContent: message.path });
  byId("taken").replaceChildren("Wrote ", link);
}

export function wireTaking() {
  const click = (id, act) => byId(id).addEventListener("click", act);
  click("copy-link", () => {
    writeAddress(true);
    copy(location.href, "link");
  });
  click("copy-command", () => copy(page.texts.command, "command"));
  click("copy-python", () => copy(page.texts.python, "script"));
  click("save", () => errand("save", "Saving the run"));
  click("report", () => errand("report", "Writing the page"));
  click("data-button", () => byId("data-file").click());
  byId("data-file").addEventListener("change", () => takeFile(byId("data-file").files[0]));
  addEventListener("dragover", (event) => {
    event.preventDefault();
    byId("drop").hidden = false;
  });
  addEventListener("dragleave", (event) => event.relatedTarget ?? (byId("drop").hidden = true));
  addEventListener("drop", (event) => {
    event.preventDefault();
    byId("drop").hidden = true;
    takeFile(event.dataTransfer.files[0]);
  });
}
