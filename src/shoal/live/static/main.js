// The page: what the worker says becomes pictures, and buttons, menus and keys become commands.

import { blank } from "./address.js";
import { askAgain, go, look, looked, play, refused, rest, restart, set, tell } from "./asking.js";
import { drawAttention, drawPlane, drawSpectrum } from "./charts.js";
import { markWrong, showControls } from "./controls.js";
import { redraw, redrawAll } from "./drawing.js";
import { byId, make, number, showWords } from "./format.js";
import { listen } from "./line.js";
import { keepAddress, readAddress, writeAddress } from "./link.js";
import { alarm, busy, idle, quiet, said } from "./notices.js";
import { freshRun, lab, page } from "./page.js";
import { addPin, askForPins, showPins, takePin } from "./pins.js";
import { showProbes } from "./probes.js";
import { prove, proveIfSmall, showProof } from "./proof.js";
import { showStep, wireStep } from "./step.js";
import { fillMenu, showStory } from "./stories.js";
import { showReport, showTexts, wireTaking } from "./taking.js";
import { fitFormula, showAdvice, showGauges, showStatement, showTheorems } from "./theorem.js";

// --------------------------------------------------------------------------- what the worker says

const handlers = {
  hello(message) {
    const menu = byId("target");
    menu.replaceChildren(...Object.entries(message.targets).map(([value, textContent]) => make("option", { value, textContent })));
    menu.value = page.state.target;
    page.stories = message.stories;
    fillMenu(page.stories);
    if (page.story) openStory(page.story, false);
  },
  controls(message) {
    page.known = message;
    showControls(message, set);
    showTheorems(message, message.theorem);
    byId("target").value = page.state.target;
    byId("seed").value = page.state.seed;
    byId("own-data").hidden = !message.drops;
    byId("sample").max = Math.max(0, message.num_samples - 1);
    showProbes(message.probes);
  },
  gauges(message) {
    quiet();
    markWrong("");
    showGauges(message);
    page.run.bounds = message.curves ?? {};
    page.run.theorem = message.theorem;
    if (message.number !== null) {
      showAdvice(null);
      looked(message);
    } else if (message.finished) proveIfSmall();
    rest();
    redraw();
  },
  run(message) {
    const { run } = page, before = run.step.length > 1 ? { step: run.step, risk: run.risk } : run.before;
    page.run = { ...freshRun(), number: message.run, total: message.total, weights: message.weights, method: message.method, before };
    byId("proof").hidden = true;
    byId("prove").disabled = false;
    blankPlane();
    for (const place of ["spectrum", "attention"]) byId(place).classList.add("old"); // of the run before
    redraw();
  },
  records(message) {
    const { run } = page;
    if (message.run !== run.number) return;
    rest();
    run.step.push(...message.step);
    run.risk.push(...message.curves.risk);
    for (const [name, values] of Object.entries(message.curves)) (run.curves[name] ??= []).push(...values);
    redraw();
  },
  status(message) {
    if (message.run !== page.run.number) return;
    lab.status = page.status = message;
    page.state.changes = message.changes;
    byId("play").textContent = message.playing ? "Pause" : message.finished ? "Play again" : "Play";
    byId("step").disabled = message.finished;
    byId("status").textContent = progress(message, page.run);
    writeAddress(message.finished);
    showPins();
  },
  step(message) {
    page.marks = { ...page.marks, ...message };
    showStep();
  },
  edge(message) {
    page.marks.edge = message.edge;
    showStep();
  },
  prediction(message) {
    if (message.run === page.run.number) page.run.prediction = message.curve;
    redraw();
  },
  statement: showStatement,
  spectrum(message) {
    page.latest.spectrum = message;
    byId("spectrum").classList.remove("old");
    drawSpectrum(message);
  },
  attention(message) {
    page.latest.attention = message;
    byId("attention").classList.remove("old");
    drawAttention(message);
  },
  advice: (message) => showAdvice(message, (change) => set(change.name, change.value)),
  texts: showTexts,
  busy: (message) => busy(message.text),
  note: (message) => said(message.text),
  error(message) {
    idle();
    if (message.about === "prove") return showProof({ verdict: "", reason: message.text });
    alarm(message.text);
    if (message.about === "look") {
      markWrong(message.text.split("=")[0]);
      refused();
    }
    if (message.about === "landscape") blankPlane();
  },
  ready: rest,
  ended(message) {
    lab.ended += 1;
    idle();
    if (message.slot !== "live") {
      byId("prove").disabled = byId("landscape-button").disabled = false;
      if (!message.changed) said("A longer job was stopped; ask for it again.");
      return;
    }
    alarm(wordsOfEnd(message, askAgain(message.changed)));
  },
  pin: takePin,
  prove(message) {
    if (message.slot === String(page.run.number)) showProof(message);
    else byId("prove").disabled = false; // of a run that is gone
  },
  landscape(message) {
    if (message.slot !== String(page.run.number)) return;
    byId("landscape-button").disabled = false;
    showWords(byId("landscape-words"), message.words);
    page.latest.plane = message;
    drawPlane(message);
  },
  save: (message) => said(`Saved the run folder ${message.path}`),
  report: showReport,
};

function wordsOfEnd(message, goesOn) {
  if (message.changed) return "Your file has changed: it is loaded anew.";
  if (goesOn) return "The worker ended unexpectedly; it is started again, and this page goes on where it was.";
  if (page.stopped) return "Stopped. Change a setting, or press Play to try again.";
  return "The worker ended again on these settings, perhaps because memory ran out. Change a setting, or press Play to try once more.";
}

function blankPlane() {
  byId("landscape-button").disabled = false;
  byId("landscape").hidden = true;
  byId("landscape-words").textContent = "The risk on a plane around the present weights.";
  page.latest.plane = null;
}

function progress(message, run) {
  if (message.diverged) return `diverged at step ${run.step[run.risk.indexOf(null)] ?? message.at}: try a smaller step`;
  const risk = run.risk.length ? ` · risk ${number(run.risk.findLast((v) => v !== null))}` : "";
  const rate = message.rate ? ` · ${number(message.rate, 3)} steps/s` : "";
  return `step ${message.at} of ${message.total}${risk}${rate}`;
}

// ------------------------------------------------------------------------------- what the user does

function openStory(place, apply = true) {
  if (apply) keepAddress();
  page.story = place;
  const step = showStory(page.stories, place, (next) => openStory(next));
  writeAddress();
  if (!step || !apply) return;
  if (step.pin && page.run.step.length) addPin();
  if (step.unpin) page.pins = [];
  showPins();
  if (!step.state) return;
  page.state = { ...blank(step.state.target), ...structuredClone(step.state) };
  page.marks = {};
  look({ reset: true, goal: step.play ? Infinity : 0 });
}

function openTarget() {
  keepAddress();
  page.state = blank(byId("target").value);
  page.story = "";
  page.marks = {};
  showStory(page.stories, "", openStory);
  look({ reset: true, goal: 0 });
}

function setTheorem() {
  page.state.theorem = byId("theorems").value;
  delete page.state.values.method;
  look({ reset: true, goal: page.status.at || null });
}

function setSeed(seed) {
  page.state.seed = Math.max(0, Math.floor(seed) || 0);
  byId("seed").value = page.state.seed;
  look({ goal: page.status.at ? Infinity : null });
}

function oneRecord() {
  const every = page.known.controls?.find((c) => c.name === "every")?.value | 0 || 1;
  go(Math.min(page.status.total, page.status.at + every));
}

function askForPlane() {
  byId("landscape-button").disabled = true;
  byId("landscape-words").textContent = "Computing the plane …";
  tell({ do: "landscape", state: page.state, steps: page.status.at, slot: String(page.run.number) });
}

function pressed(event) {
  if (event.target !== document.body && event.target.id !== "middle") return;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const act = { " ": "play", s: "step", r: "restart", p: "pin" }[event.key];
  if (!act) return;
  event.preventDefault();
  byId(act).click();
}

function wire() {
  const on = (id, event, act) => byId(id).addEventListener(event, act);
  on("play", "click", play);
  on("step", "click", oneRecord);
  on("restart", "click", () => restart(0));
  on("pin", "click", addPin);
  on("prove", "click", prove);
  on("slow", "change", () => page.status.playing && go(page.status.total));
  on("target", "change", openTarget);
  on("theorems", "change", setTheorem);
  on("stories", "change", () => openStory(byId("stories").value ? `${byId("stories").value}.1` : ""));
  on("seed", "change", () => setSeed(Number(byId("seed").value)));
  on("seed-next", "click", () => setSeed(page.state.seed + 1));
  on("sample", "change", () => tell({ do: "sample", sample: Math.max(0, Math.floor(Number(byId("sample").value)) || 0) }));
  on("landscape-button", "click", askForPlane);
  wireStep();
  wireTaking();
  addEventListener("keydown", pressed);
  addEventListener("hashchange", () => {
    const at = readAddress();
    if (at === null) return;
    showStory(page.stories, page.story, openStory);
    look({ reset: true, goal: at });
    askForPins();
  });
  addEventListener("pageshow", (event) => event.persisted && location.reload()); // its stream was closed
  addEventListener("resize", fitFormula);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  document.querySelector("script[src='plotly.js']").addEventListener("load", redrawAll);
  if (matchMedia("(max-width: 46rem)").matches) byId("settings-fold").open = false;
}

let connected = false;
function opened() {
  if (connected) return void look({ reset: true, goal: page.status.at || null }); // the stream came back
  connected = true;
  const at = readAddress();
  tell({ do: "hello" });
  look({ reset: true, goal: at ?? Infinity });
  askForPins();
}

wire();
listen(handlers, opened, () => busy("no connection to the server"));
