// The stream of the controller: one message a second, and one whenever the fleet has changed.
// A page that is not seen for a while disconnects, and connects again when it is looked at.

const HIDDEN_SECONDS = 60;
/** Seconds without a message after which the figures on the page are called old. */
const STALE_SECONDS = 5;

export const state = { fleet: null, second: null, connection: "connecting", seen: 0 };
const listeners = new Set();
let source = null;
let hiding = 0;

export function onChange(listener) {
  listeners.add(listener);
}

function changed(kind) {
  for (const listener of listeners) {
    try {
      listener(kind);
    } catch (error) {
      console.error(error);
    }
  }
}

function mark(connection) {
  if (state.connection !== connection) {
    state.connection = connection;
    changed("connection");
  }
}

function read(kind) {
  return (event) => {
    state[kind] = JSON.parse(event.data);
    state.seen = performance.now();
    mark("live");
    changed(kind);
  };
}

export function connect() {
  if (source) return;
  source = new EventSource("/console/live");
  source.addEventListener("fleet", read("fleet"));
  source.addEventListener("second", read("second"));
  source.onerror = () => {
    mark("reconnecting");
    // The browser tries again by itself, except after an answer such as 503.
    if (source && source.readyState === EventSource.CLOSED) {
      disconnect("reconnecting");
      setTimeout(connect, 3000);
    }
  };
}

export function disconnect(connection = "paused") {
  source?.close();
  source = null;
  mark(connection);
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) hiding = setTimeout(disconnect, HIDDEN_SECONDS * 1000);
  else connect();
});
document.addEventListener("freeze", () => disconnect());
document.addEventListener("resume", () => connect());
// A connection without an end keeps a page out of the browser's back and forward cache, and a tab that is left behind.
window.addEventListener("pagehide", () => disconnect());
window.addEventListener("pageshow", () => connect());

setInterval(() => {
  if (state.connection === "live" && performance.now() - state.seen > STALE_SECONDS * 1000) mark("reconnecting");
}, 1000);
