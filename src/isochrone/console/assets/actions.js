// Actions: operations of the control API, sent by this browser. Where people log in, the cookie of the session is the
// credential, which no script can read, and the token of the page shows that the console sends it; else this tab's token.

import { draw, h } from "./drawing.js";

const TOKEN = "isochrone-token";
const USER = "isochrone-user";
export const rights = { needs_token: false, may_change: false, known: false };
/** Of `/console/session`. Without logins, only the first member. */
export const session = { logins: false, identity: "", page_token: "", permissions: [] };
const SESSION = "/console/session";
let toasting = 0;

function headers() {
  if (session.logins) return session.page_token ? { "x-isochrone-page-token": session.page_token } : {};
  const user = sessionStorage.getItem(USER);
  const token = sessionStorage.getItem(TOKEN);
  // A header cannot have other characters; useToken takes no token that has.
  const name = encodeURIComponent(user || "").replaceAll("%20", " ").replaceAll("%40", "@");
  const found = { "x-isochrone-user": name ? `${name} (console)` : "console" };
  if (token) found.authorization = `Bearer ${token}`;
  return found;
}

/** Asks the API. Resolves to {ok, status, body}; never rejects. */
export async function ask(method, path, body) {
  try {
    const options = { method, headers: headers(), cache: "no-store" };
    if (body !== undefined) {
      options.body = JSON.stringify(body);
      options.headers["content-type"] = "application/json";
    }
    const response = await fetch(path, options);
    const answer = await response.json().catch(() => ({ error: `the controller answered ${response.status}` }));
    return { ok: response.ok, status: response.status, body: answer };
  } catch (error) {
    return { ok: false, status: 0, body: { error: `the controller does not answer (${error.message})` } };
  }
}

/** Sends a confirmed action. */
export async function act(action) {
  const answer = await ask(action.method, action.path, action.method === "GET" ? undefined : action.body || {});
  const about = answer.body.identity ? `${action.label}: ${answer.body.identity} is ${answer.body.state}` : action.label;
  toast(answer.ok ? about : `${action.label}: ${answer.body.error}`, answer.ok);
  if (answer.status === 401 || answer.status === 403) await readRights();
}

export function toast(text, good = true) {
  const place = document.querySelector('[data-live="toast"]');
  if (!place) return;
  draw(place, h("div", { class: good ? "said" : "said bad" }, text));
  clearTimeout(toasting);
  toasting = setTimeout(() => place.replaceChildren(), good ? 6000 : 15000);
}

/** Without a session that may look at the fleet, this page has nothing to show any more. */
function goToLogin() {
  const page = `${location.pathname}${location.search}`;
  location.assign(`/console/login?next=${encodeURIComponent(page)}`);
}

export async function logOut() {
  const answer = await ask("POST", "/console/logout");
  if (answer.ok) location.assign(answer.body.next);
  else toast(`Log out: ${answer.body.error}`, false);
}

export async function readRights() {
  const known = await ask("GET", SESSION);
  if (known.status === 401 || known.status === 403) return goToLogin();
  if (known.ok) Object.assign(session, known.body);
  if (session.logins) document.documentElement.dataset.session = session.identity ? "open" : "none";
  const answer = await ask("GET", "/v1/rights");
  if (!answer.ok) return;
  Object.assign(rights, answer.body, { known: true });
  document.documentElement.dataset.rights = rights.may_change ? "change" : "read";
  const button = document.querySelector("[data-rights-button]");
  if (button) {
    const text = rights.may_change ? "May change" : "Read-only";
    button.setAttribute("aria-label", `Rights of this browser: ${text}`);
    (button.querySelector("div") || button).textContent = text;
  }
}

/** In the dialog of rights, which exists while it is open. */
export function rightsText(place) {
  if (!rights.known) return;
  draw(place, session.logins
    ? `You are ${session.identity || "not logged in"}. Allowed: ${session.permissions.join(", ") || "nothing"}.`
    : !rights.needs_token
      ? "This controller has no token: everybody who reaches it may change the fleet."
      : rights.may_change
        ? "The token of this tab is the controller's: actions are allowed."
        : "Without the controller's token, this console is read-only.");
}

export function useToken(user, token) {
  // Not kept: with such a header a browser sends no request at all.
  if (!/^[\x21-\x7e]*$/.test(token)) {
    toast("The token has characters that no token can have: spaces, or others than ASCII. It is not used.", false);
    return Promise.resolve();
  }
  for (const [key, value] of [[USER, user], [TOKEN, token]]) {
    if (value) sessionStorage.setItem(key, value);
    else sessionStorage.removeItem(key);
  }
  return readRights().then(() =>
    toast(rights.may_change ? "Actions are allowed." : token ? "This is not the controller's token." : "Read-only.",
      rights.may_change || !token));
}

export function useFields() {
  const value = (name) => document.querySelector(`[${name}]`)?.value.trim() || "";
  return useToken(value("data-user"), value("data-token"));
}

/** A button for an action, which the page asks the reader to confirm. Shown to those who may. */
export function actionButton(kind, about, label, grave = false) {
  return h("button", {
    type: "button",
    class: `button action ${grave ? "grave" : "main"}`,
    "data-action": kind,
    "data-about": about,
    "data-id": `${kind} ${about}`,
    "aria-label": `${label} ${about}`,
  }, label);
}

// Drawn parts are replaced every second: one listener for all buttons, and not one for each.
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-action]");
  if (button) window.emitEvent("console-action", { kind: button.dataset.action, about: button.dataset.about });
});
