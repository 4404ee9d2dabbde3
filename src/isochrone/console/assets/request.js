// One request explained: asks the flight recorder for a request by its id.

import { ask } from "./actions.js";
import { draw, h } from "./drawing.js";

export function request(place) {
  if (place.querySelector("form")) return;
  const field = h("input", { type: "text", "aria-label": "Request id", placeholder: "request id", name: "id", "data-filter": true, autocomplete: "off" });
  const answer = h("div", { class: "answer", role: "status" });
  const form = h("form", { class: "form" }, h("label", {}, "Request id", field), h("button", { class: "button main", type: "submit" }, "Explain"));
  form.onsubmit = async (event) => {
    event.preventDefault();
    if (!field.value.trim()) return;
    draw(answer, h("p", { class: "hint" }, "asking…"));
    const found = await ask("GET", `/v1/why/${encodeURIComponent(field.value.trim())}`);
    if (!found.ok) return draw(answer, h("p", { class: "bad" }, found.body.error));
    draw(answer, h("pre", { class: "lines" }, (found.body.lines ?? []).join("\n")));
  };
  place.replaceChildren(form, answer);
}
