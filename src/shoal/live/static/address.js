// The state of the page and its address: whoever opens the link sees the same curve.

export const blank = (target) => ({ target, values: {}, seed: 0, theorem: "", probes: [], changes: [], data: "" });

export function toWords(state, extra = {}) {
  const words = new URLSearchParams();
  words.set("target", state.target);
  if (state.theorem) words.set("theorem", state.theorem);
  for (const [name, value] of Object.entries(state.values).sort()) words.set(`s.${name}`, value);
  if (state.seed) words.set("seed", state.seed);
  for (const probe of state.probes) words.append("probe", probe);
  for (const [at, size] of state.changes) words.append("change", `${at}:${size}`);
  if (state.data) words.set("data", state.data);
  for (const [name, value] of Object.entries(extra)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one) words.append(name, one);
  }
  return words.toString();
}

// Whatever the address holds is only read here; the worker checks every word.
export function fromWords(text) {
  const words = new URLSearchParams(text);
  if (!words.get("target")) return null;
  const state = blank(words.get("target"));
  state.theorem = words.get("theorem") ?? "";
  state.seed = natural(words.get("seed"));
  state.probes = words.getAll("probe").slice(0, 50);
  state.data = words.get("data") ?? "";
  for (const [name, value] of words) if (name.startsWith("s.")) state.values[name.slice(2)] = value;
  for (const pair of words.getAll("change").slice(0, 50)) {
    const [at, size] = pair.split(":").map(Number);
    if (Number.isInteger(at) && size > 0) state.changes.push([at, size]);
  }
  const pins = words.getAll("pin").slice(0, 6).map((pin) => fromWords(pin)).filter(Boolean);
  return { state, at: natural(words.get("at")), pins, story: words.get("story") ?? "" };
}

function natural(text) {
  const value = Number(text ?? 0);
  return Number.isInteger(value) && value >= 0 && value < 2 ** 31 ? value : 0;
}

// What differs between two states, in words.
export function differences(mine, other) {
  const found = [];
  if (mine.target !== other.target) found.push(`model ${other.target}`);
  const names = new Set([...Object.keys(mine.values), ...Object.keys(other.values)]);
  for (const name of [...names].sort()) {
    if ((mine.values[name] ?? "default") !== (other.values[name] ?? "default")) found.push(`${name} ${other.values[name] ?? "default"}`);
  }
  const steps = [mine, other].map((state) => state.values.step_size ?? "auto");
  const judged = mine.theorem && other.theorem; // a link may leave it to the lab
  if (judged && mine.theorem !== other.theorem && steps.includes("auto")) found.push(`step size of ${other.theorem.replaceAll("_", " ")}`);
  if (mine.seed !== other.seed) found.push(`seed ${other.seed}`);
  if (mine.data !== other.data) found.push(other.data ? "other data" : "data of the paper");
  if (JSON.stringify(mine.changes) !== JSON.stringify(other.changes)) found.push(other.changes.length ? `step size changed at ${other.changes.map(([at]) => at).join(", ")}` : "constant step size");
  return found;
}
