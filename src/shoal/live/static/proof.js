// From which step on the fate of the run is certain.

import { tell } from "./asking.js";
import { redraw } from "./drawing.js";
import { byId } from "./format.js";
import { page } from "./page.js";

const SMALL = 1000; // weights up to which a proof is looked for without being asked

export function prove() {
  byId("prove").disabled = true;
  byId("proof").hidden = false;
  byId("proof").textContent = "Looking for a proof …";
  tell({ do: "prove", state: page.state, steps: page.status.at, slot: String(page.run.number) });
}

export function proveIfSmall() {
  const { weights, method } = page.run;
  if (weights <= SMALL && method === "gd" && !page.status.diverged) prove();
}

export function showProof(message) {
  byId("prove").disabled = false;
  byId("proof").hidden = false;
  const certain = message.verdict === "converges" || message.verdict === "stuck";
  page.run.proof = certain ? { step: message.step ?? page.status.at, verdict: message.verdict } : null;
  const lead = certain ? `Proved from step ${page.run.proof.step} on: ${message.verdict}.` : "No proof yet (this never means that the run diverges).";
  byId("proof").textContent = `${lead} ${message.reason}`;
  redraw();
}
