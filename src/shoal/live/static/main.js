// The page: what the user does becomes commands, what the worker says becomes pictures.

import { blank, differences, fromWords, toWords } from "./address.js";
import { dashes, drawAttention, drawPlane, drawProbes, drawRisk, drawSpectrum, ghosts } from "./charts.js";
import { markWrong, scale, showControls } from "./controls.js";
import { byId, make, number, word } from "./format.js";
import { listen, restartWorkers, send, upload } from "./line.js";
import { fillMenu, showStory } from "./stories.js";
import { showAdvice, showGauges, showStatement, showTheorems } from "./theorem.js";

const start = JSON.parse(document.body.dataset.start);
let state = { ...blank(start.target), values: { ...start.values } };
let run = freshRun(), status = { at: 0, total: 0, playing: false, finished: false, changes: [] };
let pins = [], stories = [], story = "", texts = { command: "", python: "" };
let known = { recorded: [], probes: [] }, latest = {}, marks = {};
let wanted = null; // how far to train once the gauges of the newest look are there
let asked = 0, answered = 0, waiting = false, resetNext = false, moved = 0, working = false;
const lab = (globalThis.lab = { latencies: [], ended: 0 }); // for those who measure

function freshRun() {
  return { number: 0, total: 0, step: [], risk: [], curves: {}, prediction: null, bounds: {}, proof: null, theorem: "" };
}

// ---------------------------------------------------------------------- asking, newest state only

function look({ reset = false, goal = null } = {}) {
  resetNext ||= reset;
  if (goal !== null) wanted = goal;
  moved ||= performance.now();
  writeAddress();
  if (asked > answered) return void (waiting = true);
  asked += 1;
  busy("measuring");
  tell({ do: "look", state, number: asked, reset: resetNext });
  resetNext = false;
}

async function tell(command) {
  const said = await send(command);
  if (said.error) {
    alarm(said.error);
    if (command.do === "look") settle(command.number);
  }
  return !said.error;
}

function settle(count) {
  answered = Math.max(answered, count);
  if (waiting) {
    waiting = false;
    look();
  }
}

// A setting moved. A run that was going starts again with the new value.
function set(name, value) {
  if (value === null) delete state.values[name];
  else state.values[name] = value;
  state.changes = [];
  look({ goal: status.playing ? Infinity : 0 });
}

function setStep(value) {
  if (status.at > 0 && !status.finished) {
    tell({ do: "step_size", value });
  } else {
    state.values.step_size = String(value);
    state.changes = [];
    look({ goal: status.finished ? Infinity : null });
  }
}

function go(goal) {
  tell({ do: "go", to: Math.min(goal, 1e9), pace: byId("slow").checked ? 0.05 : 0 });
}

function play() {
  if (status.playing) return void tell({ do: "pause" });
  if (status.finished) restart();
  else go(status.total);
}

function restart(goal = Infinity) {
  state.changes = [];
  look({ reset: true, goal });
}

// --------------------------------------------------------------------------- what the worker says

const handlers = {
  hello(message) {
    const menu = byId("target");
    menu.replaceChildren(...Object.entries(message.targets).map(([value, textContent]) => make("option", { value, textContent })));
    menu.value = state.target;
    stories = message.stories;
    fillMenu(stories);
    if (story) openStory(story, false);
  },
  controls(message) {
    known = message;
    showControls(message, set);
    showTheorems(message, message.theorem);
    byId("target").value = state.target;
    byId("seed").value = state.seed;
    byId("own-data").hidden = !message.drops;
    byId("sample").max = Math.max(0, message.num_samples - 1);
    fillProbes(message);
  },
  gauges(message) {
    idle();
    quiet();
    markWrong("");
    showGauges(message);
    run.bounds = message.curves ?? {};
    run.theorem = message.theorem;
    if (message.number !== null) {
      showAdvice(null);
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
    } else if (message.finished) proveIfSmall();
    redraw();
  },
  run(message) {
    const before = run.step.length > 1 ? { step: run.step, risk: run.risk } : run.before;
    run = { ...freshRun(), number: message.run, total: message.total, before };
    byId("proof").hidden = true;
    redraw();
  },
  records(message) {
    if (message.run !== run.number) return;
    idle();
    run.step.push(...message.step);
    run.risk.push(...message.curves.risk);
    for (const [name, values] of Object.entries(message.curves)) (run.curves[name] ??= []).push(...values);
    redraw();
  },
  status(message) {
    if (message.run !== run.number) return;
    lab.status = status = message;
    state.changes = message.changes;
    byId("play").textContent = message.playing ? "Pause" : message.finished ? "Play again" : "Play";
    byId("step").disabled = message.finished;
    const last = run.risk.findLast((v) => v !== null);
    const risk = run.risk.length ? ` · risk ${number(last)}` : "";
    const rate = message.rate ? ` · ${number(message.rate, 3)} steps/s` : "";
    byId("status").textContent = message.diverged ? `diverged at step ${run.step[run.risk.indexOf(null)] ?? message.at}: try a smaller step` : `step ${message.at} of ${message.total}${risk}${rate}`;
    writeAddress();
  },
  step(message) {
    marks = { ...marks, ...message };
    showStep();
  },
  edge(message) {
    marks.edge = message.edge;
    showStep();
  },
  prediction(message) {
    if (message.run === run.number) run.prediction = message.curve;
    redraw();
  },
  statement: showStatement,
  spectrum(message) {
    latest.spectrum = message;
    drawSpectrum(message);
  },
  attention(message) {
    latest.attention = message;
    drawAttention(message);
  },
  advice: (message) => showAdvice(message, (change) => set(change.name, change.value)),
  texts(message) {
    texts = message;
    byId("command").textContent = message.command || "The step size was changed on the way: copy Python repeats it.";
    byId("copy-command").disabled = !message.command;
  },
  busy: (message) => busy(message.text),
  note: (message) => said(message.text),
  error(message) {
    idle();
    alarm(message.text);
    if (message.about === "look") {
      markWrong(message.text.split("=")[0]);
      wanted = null;
      moved = 0;
      settle(asked);
    }
    if (message.about === "prove") showProof({ verdict: "", reason: message.text });
  },
  ready: () => idle(),
  ended(message) {
    lab.ended += 1;
    idle();
    if (message.slot !== "live") return said("A longer job was stopped; ask for it again.");
    alarm("The worker ended unexpectedly; it is started again, and this page goes on where it was.");
    const goal = status.playing ? Infinity : status.at;
    asked = answered = 0;
    waiting = false;
    look({ reset: true, goal });
  },
  pin(message) {
    const pin = pins.find((one) => one.slot === message.slot);
    if (!pin) return;
    pin.step = message.step;
    pin.risk = message.risk;
    showPins();
    redraw();
  },
  prove(message) {
    if (message.slot !== String(run.number)) return;
    showProof(message);
  },
  landscape(message) {
    byId("landscape-button").disabled = false;
    byId("landscape-words").textContent = message.words;
    latest.plane = message;
    drawPlane(message);
  },
  save: (message) => said(`Saved the run folder ${message.path}`),
  report(message) {
    const link = make("a", { href: `pages/${encodeURIComponent(message.page)}`, target: "_blank", rel: "noopener", textContent: message.path });
    byId("taken").replaceChildren("Wrote ", link);
  },
};

// ------------------------------------------------------------------------------------- drawing

// While a run plays, a few pictures a second leave the cores to the training.
const PAUSE = 250;
let drawing = false, drawnAt = 0;
function redraw() {
  if (drawing) return;
  drawing = true;
  const wait = status.playing ? Math.max(0, PAUSE - (performance.now() - drawnAt)) : 0;
  setTimeout(() => requestAnimationFrame(() => {
    drawing = false;
    drawnAt = performance.now();
    drawRisk({ ...run, ...(status.playing ? thinned(run) : {}), pins: pins.filter((pin) => pin.step), changes: status.changes });
    drawProbes({ ...run, recorded: known.recorded, chosen: state.probes });
  }), wait);
}

// More points than pixels help nobody while the curve still grows; when it rests, all are drawn.
function thinned({ step, risk }) {
  const stride = Math.ceil(step.length / 1500), keep = (_, k) => k % stride === 0 || k === step.length - 1;
  return { step: step.filter(keep), risk: risk.filter(keep) };
}

function redrawAll() {
  redraw();
  drawSpectrum(latest.spectrum);
  drawAttention(latest.attention ?? null);
  if (latest.plane) drawPlane(latest.plane);
}

let jobs = 0;
function busy(text) {
  working = true;
  const job = (jobs += 1), still = () => working && job === jobs;
  setTimeout(() => {
    if (!still()) return;
    byId("worker").className = "working";
    byId("worker").textContent = `${text} …`;
  }, 250);
  setTimeout(() => {
    if (!still()) return;
    const stop = make("button", { className: "plain", textContent: "stop it", title: "End the worker and start another" });
    stop.onclick = restartWorkers;
    byId("worker").textContent = `${text}, compiling … `;
    byId("worker").append(stop);
  }, 4000);
}

function idle() {
  working = false;
  byId("worker").className = "";
  byId("worker").textContent = "";
}

function alarm(text) {
  byId("alert").hidden = false;
  const close = make("button", { className: "plain", textContent: "dismiss" });
  close.onclick = quiet;
  byId("alert").replaceChildren(text, " ", close);
}
const quiet = () => (byId("alert").hidden = true);
const said = (text) => (byId("taken").textContent = text);

// ------------------------------------------------------------------------------------- step size

let stepScale = null;
function showStep() {
  const middle = marks.edge ?? (marks.usual ? 4 * marks.usual : null);
  if (!middle || !marks.now) return;
  const all = [marks.now, marks.largest, marks.usual].filter((v) => v > 0);
  stepScale = scale(Math.min(middle / 1000, ...all), Math.max(middle * 4, ...all), false);
  const slider = byId("step-slider");
  if (document.activeElement !== slider) slider.value = stepScale.place(marks.now);
  if (document.activeElement !== byId("step-box")) byId("step-box").value = marks.now < 1e-3 ? marks.now.toExponential(3) : String(Number(marks.now.toPrecision(5)));
  const lines = [
    ["largest", `largest that ${known.theorem ? known.theorem.replaceAll("_", " ") : "the theorem"} allows`, "--bound"],
    ["edge", "2 / sharpness: unstable beyond", "--bad"],
    ["usual", "default", "--accent"],
  ];
  byId("step-ticks").replaceChildren(...lines.filter(([key]) => marks[key]).map(([key, , colour]) => {
    const tick = make("span");
    tick.style.left = `calc(8px + (100% - 16px) * ${stepScale.place(marks[key]) / 1000})`;
    tick.style.background = `var(${colour})`;
    return tick;
  }));
  const buttons = lines.map(([key, text, colour]) => {
    const sign = make("i");
    sign.style.background = `var(${colour})`;
    const button = make("button", { className: "plain", title: "Use this step size", disabled: !marks[key] }, sign, make("span", { textContent: text }), make("b", { textContent: marks[key] ? number(marks[key]) : "none" }));
    button.onclick = () => setStep(marks[key]);
    return button;
  });
  byId("step-marks").replaceChildren(...buttons);
}

// --------------------------------------------------------------------------------- probes and pins

function fillProbes(message) {
  const list = byId("probe-list");
  const names = message.probes.map((p) => p.name);
  if (JSON.stringify([...list.children].map((c) => c.dataset.name)) !== JSON.stringify(names)) {
    list.replaceChildren(...message.probes.map((probe) => {
      const box = make("input", { type: "checkbox", value: probe.name });
      box.onchange = () => {
        state.probes = [...list.querySelectorAll("input:checked")].map((b) => b.value);
        look();
      };
      const label = make("label", {}, box, make("span", {}, probe.name.replaceAll("_", " "), make("small", { textContent: probe.sentence })));
      label.dataset.name = probe.name;
      return label;
    }));
  }
  for (const box of list.querySelectorAll("input")) box.checked = state.probes.includes(box.value);
}

function addPin() {
  if (!run.step.length) return said("Nothing to pin yet: press Play first.");
  if (pins.length >= 6) pins.shift();
  pins.push({ state: structuredClone({ ...state, theorem: known.theorem ?? "" }), at: status.at, step: [...run.step], risk: [...run.risk], slot: String(Date.now()) });
  showPins();
  redraw();
  writeAddress();
}

function showPins() {
  byId("pins").replaceChildren(...pins.map((pin, k) => {
    const line = document.createElementNS("http://www.w3.org/2000/svg", "svg"), path = document.createElementNS("http://www.w3.org/2000/svg", "line");
    line.setAttribute("width", 26), line.setAttribute("height", 8), line.setAttribute("aria-hidden", "true");
    for (const [name, value] of [["x1", 0], ["x2", 26], ["y1", 4], ["y2", 4], ["stroke-width", 2.5]]) path.setAttribute(name, value);
    path.style.stroke = `var(${ghosts[k % 3]})`;
    path.style.strokeDasharray = { dash: "7 4", dot: "2 3", dashdot: "7 3 2 3" }[dashes[k % 3]];
    line.append(path);
    const differs = differences(state, pin.state), last = pin.risk?.findLast((v) => v !== null);
    const text = make("span", { textContent: `pinned ${k + 1}: ${differs.length ? differs.join(", ") : "the same settings"}; risk ${number(last)} at step ${pin.at}` });
    const back = make("button", { className: "plain", textContent: "go back to it" }), away = make("button", { className: "plain", textContent: "remove", ariaLabel: `remove pinned ${k + 1}` });
    back.onclick = () => {
      state = structuredClone(pin.state);
      look({ reset: true, goal: pin.at });
    };
    away.onclick = () => {
      pins = pins.filter((one) => one !== pin);
      showPins();
      redraw();
      writeAddress();
    };
    return make("div", { className: "pinned" }, line, text, back, away);
  }));
}

// ------------------------------------------------------------------------------------------ proof

function prove() {
  byId("prove").disabled = true;
  byId("proof").hidden = false;
  byId("proof").textContent = "Looking for a proof …";
  tell({ do: "prove", state, steps: status.at, slot: String(run.number) });
}

function proveIfSmall() {
  if (known.weights <= 1000 && known.method === "gd" && !status.diverged) prove();
}

function showProof(message) {
  byId("prove").disabled = false;
  byId("proof").hidden = false;
  const certain = message.verdict === "converges" || message.verdict === "stuck";
  run.proof = certain ? { step: message.step ?? status.at, verdict: message.verdict } : null;
  const lead = certain ? `Proved from step ${run.proof.step} on: ${message.verdict}.` : "No proof yet (this never means that the run diverges).";
  byId("proof").textContent = `${lead} ${message.reason}`;
  redraw();
}

// ---------------------------------------------------------------------------------------- address

function writeAddress() {
  const pinned = pins.map((pin) => toWords(pin.state, { at: pin.at }));
  history.replaceState(null, "", `#${toWords(state, { at: status.at, pin: pinned, story })}`);
  if (pins.length) showPins();
}

function readAddress() {
  const found = fromWords(location.hash.slice(1));
  if (!found) return false;
  state = found.state;
  story = found.story;
  wanted = found.at || null;
  pins = found.pins.map((pin, k) => ({ state: pin.state, at: pin.at, slot: `link${k}` }));
  return true;
}

function openStory(place, apply = true) {
  story = place;
  const step = showStory(stories, place, (next) => openStory(next));
  writeAddress();
  if (!step || !apply) return;
  if (step.pin && run.step.length) addPin();
  if (step.unpin) pins = [];
  showPins();
  if (!step.state) return;
  state = { ...blank(step.state.target), ...structuredClone(step.state) };
  marks = {};
  look({ reset: true, goal: step.play ? Infinity : 0 });
}

// ------------------------------------------------------------------------------------------ events

async function takeFile(file) {
  if (!file) return;
  byId("data-note").textContent = `Reading ${file.name.slice(0, 80)} …`;
  const said = await upload(file);
  if (said.error) {
    byId("data-note").textContent = said.error;
    return alarm(said.error);
  }
  const shapes = Object.entries(said.arrays).map(([name, shape]) => `${name} ${shape.join(" × ")}`).join(", ");
  byId("data-note").textContent = `Using ${file.name.slice(0, 80)}: ${shapes}.`;
  for (const name of ["num_samples", "num_tokens", "dim", "out_dim", "problem"]) delete state.values[name];
  state.data = said.data;
  state.changes = [];
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

function errand(name) {
  said(`${name === "save" ? "Saving the run" : "Writing the page"} …`);
  tell({ do: name, state, steps: status.at });
}

function wire() {
  const on = (id, event, act) => byId(id).addEventListener(event, act);
  on("play", "click", play);
  on("step", "click", () => go(Math.min(status.total, status.at + (known.controls?.find((c) => c.name === "every")?.value | 0 || 1))));
  on("restart", "click", () => restart(0));
  on("pin", "click", addPin);
  on("prove", "click", prove);
  on("slow", "change", () => status.playing && go(status.total));
  on("target", "change", () => {
    state = blank(byId("target").value);
    story = "";
    marks = {};
    showStory(stories, "", openStory);
    look({ reset: true, goal: 0 });
  });
  on("theorems", "change", () => {
    state.theorem = byId("theorems").value;
    delete state.values.method;
    look({ reset: true, goal: status.at || null });
  });
  on("stories", "change", () => openStory(byId("stories").value ? `${byId("stories").value}.1` : ""));
  on("seed", "change", () => {
    state.seed = Math.max(0, Math.floor(Number(byId("seed").value)) || 0);
    look({ goal: status.at ? Infinity : null });
  });
  on("seed-next", "click", () => {
    state.seed += 1;
    byId("seed").value = state.seed;
    look({ goal: status.at ? Infinity : null });
  });
  on("step-slider", "input", () => {
    if (!stepScale) return;
    const value = Number(word(stepScale.value(Number(byId("step-slider").value)), false));
    byId("step-box").value = String(value);
    setStep(value);
  });
  on("step-box", "change", () => {
    const value = Number(byId("step-box").value);
    if (value > 0) setStep(value);
    else alarm("step size: expected a number above 0.");
  });
  on("sample", "change", () => tell({ do: "sample", sample: Math.max(0, Math.floor(Number(byId("sample").value)) || 0) }));
  on("landscape-button", "click", () => {
    byId("landscape-button").disabled = true;
    byId("landscape-words").textContent = "Computing the plane …";
    tell({ do: "landscape", state, steps: status.at });
  });
  on("copy-link", "click", () => copy(location.href, "link"));
  on("copy-command", "click", () => copy(texts.command, "command"));
  on("copy-python", "click", () => copy(texts.python, "script"));
  on("save", "click", () => errand("save"));
  on("report", "click", () => errand("report"));
  on("data-button", "click", () => byId("data-file").click());
  on("data-file", "change", () => takeFile(byId("data-file").files[0]));
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
  addEventListener("keydown", (event) => {
    if (event.target !== document.body && event.target.id !== "middle") return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = { " ": "play", s: "step", r: "restart", p: "pin" }[event.key];
    if (!act) return;
    event.preventDefault();
    byId(act).click();
  });
  addEventListener("hashchange", () => {
    if (!readAddress()) return;
    look({ reset: true });
    askForPins();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  document.querySelector("script[src='plotly.js']").addEventListener("load", redrawAll);
  if (matchMedia("(max-width: 46rem)").matches) byId("settings-fold").open = false;
}

let connected = false;
function opened() {
  if (connected) return void look({ reset: true, goal: status.at || null }); // the stream came back
  connected = true;
  const linked = readAddress();
  tell({ do: "hello" });
  look({ reset: true, goal: linked ? wanted : Infinity });
  askForPins();
}

function askForPins() {
  for (const pin of pins) tell({ do: "pin", state: pin.state, steps: pin.at, slot: pin.slot });
}

function lost() {
  busy("no connection to the server");
}

wire();
listen(handlers, opened, lost);
