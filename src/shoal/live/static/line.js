// The line to the server: a stream of events in, small commands out.

const session = [...crypto.getRandomValues(new Uint8Array(12))].map((b) => b.toString(16).padStart(2, "0")).join("");

export function listen(handlers, opened, lost) {
  const stream = new EventSource(`events/${session}`);
  stream.onopen = opened;
  stream.onerror = lost;
  stream.onmessage = (event) => {
    const message = JSON.parse(event.data);
    const handler = handlers[message.kind];
    if (handler) handler(message);
  };
  addEventListener("pagehide", () => stream.close());
}

async function post(path, body, kind) {
  try {
    const answer = await fetch(path, { method: "POST", body, headers: { "Content-Type": kind } });
    const said = await answer.json().catch(() => ({}));
    return answer.ok ? said : { error: said.error ?? `the server answered ${answer.status}` };
  } catch {
    return { error: "the server does not answer; is shoal lab still running?" };
  }
}

export const send = (command) => post(`do/${session}`, JSON.stringify(command), "application/json");
export const upload = (file) => post("data", file, "application/octet-stream");
export const restartWorkers = () => post("restart", "{}", "application/json");
