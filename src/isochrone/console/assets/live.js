// The stream of the controller: one message a second, and one whenever the fleet has changed.
// A page that is not seen for a while disconnects, and connects again when it is looked at.

const HIDDEN_SECONDS = 60;
/** Seconds without a message after which the figures on the page are called old. */
const STALE_SECONDS = 5;
/** And after which the stream is opened again: a connection can be lost without an error. */
const LOST_SECONDS = 15;
/** Parts of a message that have names of the fleet as keys. */
const BY_NAME = ["workers", "gateways", "models"];

export const state = { fleet: null, second: null, connection: "connecting", seen: 0 };
const listeners = new Set();
let source = null;
let opened = 0;
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
    const message = JSON.parse(event.data);
    // A model may be called "constructor": only the keys of the message are found.
    for (const name of BY_NAME) if (message[name]) Object.setPrototypeOf(message[name], null);
    state[kind] = message;
    state.seen = performance.now();
    mark("live");
    changed(kind);
  };
}

export function connect() {
  if (source) return;
  source = new EventSource("/console/live");
  opened = performance.now();
  source.addEventListener("fleet", read("fleet"));
  source.addEventListener("second", read("second"));
  source.onerror = () => {
    mark("reconnecting");
    // The browser tries again by itself, except after an answer such as 503.
    if (source && source.readyState === EventSource.CLOSED) {
      disconnect("reconnecting");
      document.dispatchEvent(new Event("isochrone-refused"));
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
  const now = performance.now();
  if (state.connection === "live" && now - state.seen > STALE_SECONDS * 1000) mark("reconnecting");
  if (source && now - Math.max(state.seen, opened) > LOST_SECONDS * 1000) {
    disconnect("reconnecting");
    connect();
  }
}, 1000);
