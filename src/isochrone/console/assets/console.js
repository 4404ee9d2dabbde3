// Draws the live parts of whatever page is open, and has the theme, the keys and the state of the connection.

import { act, ask, logOut, readRights, rightsText, session, toast, useFields, useToken } from "./actions.js";
import { draw, h } from "./drawing.js";
import { events } from "./events.js";
import { fleetMap, gateways, models, summary } from "./fleet.js";
import { chooser, follow, heatMap, percentiles, waterfall } from "./latency.js";
import { connect, onChange, state } from "./live.js";
import { request } from "./request.js";
import { rollouts, servedVersions } from "./rollouts.js";
import { whatIf } from "./what_if.js";

const PARTS = {
  "fleet-name": (place, { fleet }) => fleet && draw(place, fleet.fleet),
  connection, warnings, summary, "fleet-map": fleetMap, models, gateways, waterfall, chooser, percentiles,
  "rights-text": rightsText, "heat-map": heatMap, rollouts, "served-versions": servedVersions, events, request, "what-if": whatIf,
};

function connection(place) {
  const words = { live: "live", connecting: "connecting", reconnecting: "reconnecting", paused: "paused" };
  draw(place, h("span", { class: `connection ${state.connection}` }, words[state.connection]));
}

function warnings(place, { fleet }) {
  const found = !fleet ? [] : [
    fleet.store_error && `The store: ${fleet.store_error}. What is shown may be old, and nothing can be changed.`,
    !fleet.leader && "No controller leads: rollouts do not go on.",
    fleet.access_fault,
    ...fleet.faults.slice(0, 3).map((fault) => `A record cannot be read: ${fault}`),
  ].filter(Boolean);
  draw(place, found.map((text) => h("p", { class: "warning" }, text)));
}

function redraw() {
  for (const place of document.querySelectorAll("[data-live]")) {
    try {
      PARTS[place.dataset.live]?.(place, state);
    } catch (error) {
      // One part must not keep the others from being drawn.
      console.error(place.dataset.live, error);
    }
  }
}

onChange((kind) => {
  if (kind === "second") follow(state);
  if (!document.hidden) redraw();
});
document.addEventListener("visibilitychange", () => document.hidden || redraw());
document.addEventListener("isochrone-redraw", () => {
  follow(state);
  redraw();
});
let resizing = 0;
window.addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(redraw, 100);
});

// Theme: as the system, or as chosen.
const THEMES = ["auto", "light", "dark"];
function nextTheme() {
  const now = document.documentElement.dataset.theme || "auto";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  document.documentElement.dataset.theme = next;
  localStorage.setItem("isochrone-theme", next);
  toast(next === "auto" ? "Theme: as the system" : `Theme: ${next}`);
  redraw();
}
document.addEventListener("click", (event) => {
  if (event.target.closest?.("[data-theme-button]")) nextTheme();
});

// Keys. Not while somebody writes.
let went = 0;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest?.("input, textarea, select, [contenteditable], .q-field")) return;
  if (document.querySelector(".q-dialog .q-card")) return;
  if (performance.now() - went < 1500) {
    went = 0;
    const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]:not([hidden])`);
    if (link) {
      event.preventDefault();
      link.click();
      return;
    }
  }
  if (event.key === "g") went = performance.now();
  else if (event.key === "t") nextTheme();
  else if (event.key === "?") document.querySelector("[data-help]")?.click();
  else if (event.key === "/") {
    const field = document.querySelector("[data-filter]");
    if (field) {
      event.preventDefault();
      field.focus();
    }
  }
});

/** Pages whose operation the controller has not, or the reader may not use, are not offered. */
async function offerPages() {
  const links = document.querySelectorAll("nav a[data-operation]");
  if (!links.length) return;
  const { ok, body } = await ask("GET", "/v1/openapi.json");
  for (const link of links) {
    const { operation, permission } = link.dataset;
    const may = !session.logins || !permission || session.permissions.includes(permission);
    link.hidden = !(ok && may && Object.keys(body.paths ?? {}).some((path) => path.startsWith(operation)));
  }
}

window.isochrone = { act, logOut, useToken, useFields };
// The stream was refused: it may be that the session has ended.
document.addEventListener("isochrone-refused", readRights);

/** The framework mounts the page after this module has run, and may draw parts of it again later. */
function start() {
  connect();
  const page = document.querySelector("nav a[aria-current]");
  // On a phone the navigation may be wider than the screen.
  if (page) page.parentElement.scrollLeft = page.offsetLeft - page.parentElement.clientWidth / 2;
  readRights().then(offerPages);
  redraw();
}
const mounted = new MutationObserver(() => {
  if (document.querySelector("#main")) {
    mounted.disconnect();
    start();
  }
});
if (document.querySelector("#main")) start();
else mounted.observe(document.documentElement, { childList: true, subtree: true });
