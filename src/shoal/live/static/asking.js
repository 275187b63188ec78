// What the user does becomes commands. Of a slider that moves only the newest state is asked for.

import { byId } from "./format.js";
import { send } from "./line.js";
import { writeAddress } from "./link.js";
import { alarm, busy, idle } from "./notices.js";
import { lab, page } from "./page.js";

let wanted = null; // how far to train once the gauges of the newest look are there
let ended = "", lost = false; // where a worker ended; nobody knows of this page's run
let asked = 0, answered = 0, waiting = false, resetNext = false, moved = 0;

export async function tell(command) {
  const said = await send(command);
  if (said.error) {
    alarm(said.error);
    if (command.do === "look") settle(command.number);
  }
  return !said.error;
}

export function look({ reset = false, goal = null } = {}) {
  resetNext ||= reset;
  if (goal !== null) wanted = goal;
  moved ||= performance.now();
  writeAddress();
  if (asked > answered) return void (waiting = true);
  asked += 1;
  busy("measuring");
  tell({ do: "look", state: page.state, number: asked, reset: resetNext });
  resetNext = lost = page.stopped = false;
}

function settle(count) {
  answered = Math.max(answered, count);
  if (waiting) {
    waiting = false;
    look();
  }
}

// The gauges of a look are there: the next look, or the run that waited for them.
export function looked(message) {
  if (moved && !waiting) {
    lab.latencies.push({ page: performance.now() - moved, worker: message.milliseconds });
    moved = 0;
  }
  settle(message.number);
  if (answered >= asked && wanted !== null) {
    const goal = wanted;
    wanted = null;
    if (goal > 0) go(goal);
  }
}

// What was asked for is answered: nothing is under way. Late words about other work do not count.
export function rest() {
  if (answered >= asked) idle();
}

// A look was refused: nothing waits for its gauges.
export function refused() {
  wanted = null;
  moved = 0;
  settle(asked);
}

// The worker is a new one, which has answered nothing yet. It is not asked again for what was stopped,
// nor for what ended it twice at one place: whether it was asked.
export function askAgain(changed) {
  const { playing, at } = page.status, here = JSON.stringify([page.state, at]);
  asked = answered = 0;
  waiting = false;
  wanted = null;
  lost = !changed && (page.stopped || here === ended);
  ended = lost || changed ? "" : here;
  if (!lost) look({ reset: true, goal: playing ? Infinity : at });
  return !lost;
}

// A setting moved. A run that was going starts again with the new value.
export function set(name, value) {
  if (value === null) delete page.state.values[name];
  else page.state.values[name] = value;
  page.state.changes = [];
  look({ goal: page.status.playing ? Infinity : 0 });
}

export function setStep(value) {
  const { at, finished } = page.status;
  if (at > 0 && !finished && !lost) {
    tell({ do: "step_size", value });
  } else {
    page.state.values.step_size = String(value);
    page.state.changes = [];
    look({ goal: finished ? Infinity : null });
  }
}

export function go(goal) {
  if (lost) return look({ reset: true, goal });
  tell({ do: "go", to: Math.min(goal, 1e9), pace: byId("slow").checked ? 0.05 : 0 });
}

export function play() {
  if (page.status.playing) tell({ do: "pause" });
  else if (page.status.finished) restart();
  else go(lost ? Infinity : page.status.total);
}

export function restart(goal = Infinity) {
  page.state.changes = [];
  look({ reset: true, goal });
}
