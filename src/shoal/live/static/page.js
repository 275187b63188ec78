// What the page is about: one object that all modules share.

import { blank } from "./address.js";

const start = JSON.parse(document.body.dataset.start);

export const page = {
  state: { ...blank(start.target), values: { ...start.values } }, // what is asked for
  run: freshRun(), // what was recorded of it
  status: { at: 0, total: 0, playing: false, finished: false, changes: [] },
  known: { recorded: [], probes: [] }, // what the worker says of the model
  marks: {}, // of the step size
  latest: {}, // spectrum, attention and plane, to be drawn again
  pins: [],
  stopped: false, // by the user, who does not want it done again
  stories: [],
  story: "",
  texts: { command: "", python: "" },
};

export const lab = (globalThis.lab = { latencies: [], ended: 0 }); // for those who measure

export function freshRun() {
  return { number: 0, total: 0, step: [], risk: [], curves: {}, prediction: null, bounds: {}, proof: null, theorem: "" };
}
