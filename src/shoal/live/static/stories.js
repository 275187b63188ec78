// Guided stories: a few steps each; a step sets the page up, and says what to look at.

import { byId, make } from "./format.js";

export function fillMenu(stories) {
  const menu = byId("stories");
  if (menu.options.length > 1) return;
  menu.append(...stories.map((story, k) => make("option", { value: String(k + 1), textContent: `${k + 1}. ${story.title}` })));
}

// `place` is "2.3": story 2, step 3. `go(place)` moves; `apply(step)` sets the page up.
export function showStory(stories, place, go) {
  const panel = byId("story");
  const [which, at] = place.split(".").map(Number);
  const story = stories[which - 1], step = story?.steps[(at || 1) - 1];
  panel.hidden = !step;
  byId("stories").value = step ? String(which) : "";
  if (!step) return null;
  const last = (at || 1) === story.steps.length;
  const back = make("button", { textContent: "Back", disabled: (at || 1) === 1 });
  const next = make("button", { className: "main", textContent: last ? "Done" : "Next" });
  const leave = make("button", { className: "plain", textContent: "leave the story" });
  back.onclick = () => go(`${which}.${(at || 1) - 1}`);
  next.onclick = () => go(last ? "" : `${which}.${(at || 1) + 1}`);
  leave.onclick = () => go("");
  panel.replaceChildren(
    make("h2", { textContent: `${story.title} (${at || 1} of ${story.steps.length})` }),
    make("p", { textContent: step.text }),
    ...(step.code ? [make("pre", { textContent: step.code, tabIndex: 0 })] : []),
    make("div", { className: "buttons" }, back, next, leave),
  );
  return step;
}
