// The address follows the page, and the page an address.

import { fromWords, toWords } from "./address.js";
import { page } from "./page.js";

const PAUSE = 200; // milliseconds between writes: browsers stop a page that writes at every move
let written = -PAUSE, waiting = null;

export function writeAddress(now = false) {
  clearTimeout(waiting);
  const wait = now ? 0 : written + PAUSE - performance.now();
  if (wait > 0) return void (waiting = setTimeout(writeAddress, wait, true));
  written = performance.now();
  const pin = page.pins.map((one) => toWords(one.state, { at: one.at }));
  history.replaceState(null, "", `#${toWords(page.state, { at: page.status.at, pin, story: page.story })}`);
}

// What follows is another entry of the history, so the browser's Back returns to this one.
export function keepAddress() {
  writeAddress(true);
  history.pushState(null, "", location.href);
}

// Takes over what the address says; returns how far its run went, or null without an address.
export function readAddress() {
  clearTimeout(waiting);
  const found = fromWords(location.hash.slice(1));
  if (!found) return null;
  page.state = found.state;
  page.story = found.story;
  page.pins = found.pins.map((pin, k) => ({ state: pin.state, at: pin.at, slot: `link${k}` }));
  return found.at;
}
