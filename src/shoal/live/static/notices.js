// What the page says beside its pictures: that it works, what went wrong, what was done.

import { byId, make } from "./format.js";
import { restartWorkers } from "./line.js";
import { page } from "./page.js";

const SHOWN = 250, LONG = 4000; // milliseconds of work after which it is told, and can be stopped
let working = false, jobs = 0;

export function busy(text) {
  working = true;
  const job = (jobs += 1), still = () => working && job === jobs;
  setTimeout(() => {
    if (!still()) return;
    byId("worker").className = "working";
    byId("worker").textContent = `${text} …`;
  }, SHOWN);
  setTimeout(() => {
    if (!still()) return;
    const stop = make("button", { className: "plain", textContent: "stop it", title: "End the worker and start another" });
    stop.onclick = () => {
      page.stopped = true;
      restartWorkers();
    };
    byId("worker").textContent = `${text}, compiling … `;
    byId("worker").append(stop);
  }, LONG);
}

export function idle() {
  working = false;
  byId("worker").className = "";
  byId("worker").textContent = "";
}

export function alarm(text) {
  byId("alert").hidden = false;
  const close = make("button", { className: "plain", textContent: "dismiss" });
  close.onclick = quiet;
  byId("alert").replaceChildren(text, " ", close);
}

export const quiet = () => (byId("alert").hidden = true);
export const said = (text) => (byId("taken").textContent = text);
