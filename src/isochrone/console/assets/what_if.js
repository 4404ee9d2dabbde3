// What if: asks the simulator about a changed fleet, and shows its answer beside today's figures.

import { ask } from "./actions.js";
import { draw, h, milliseconds, percent, rate, table } from "./drawing.js";

const FACTORS = [["", "as today"], ["0.5", "half"], ["1.5", "1.5 times"], ["2", "double"], ["3", "three times"], ["5", "five times"]];

export function whatIf(place, { fleet }) {
  if (!fleet) return;
  const workers = fleet.map.tiers.flatMap((tier) => tier.pools.flatMap((pool) => pool.workers.map((each) => each.name)));
  const made = place.querySelector("form");
  if (made) return offer(made.elements.lose, workers);
  const field = (name, label, options) => h("label", {}, label, h("select", { name }, options.map(([value, text]) => h("option", { value }, text))));
  const policies = document.querySelector("[data-policies]")?.dataset.policies.split(" ") ?? [];
  const answer = h("div", { class: "answer", role: "status" });
  const form = h("form", { class: "form", "data-what-if": true },
    field("lose", "Lose a worker", [["", "none"]]),
    field("load", "Load", FACTORS),
    field("policy", "Policy", [["", "as today"], ...policies.map((name) => [name, name])]),
    h("button", { class: "button main", type: "submit" }, "Simulate"));
  form.onsubmit = async (event) => {
    event.preventDefault();
    const questions = ["lose", "load", "policy"].filter((name) => form.elements[name].value).map((name) => `${name}=${form.elements[name].value}`);
    if (!questions.length) return draw(answer, h("p", { class: "hint" }, "Choose something that changes."));
    draw(answer, h("p", { class: "hint" }, "simulating…"));
    const started = performance.now();
    const found = await ask("POST", "/v1/what-if", { questions });
    const took = (performance.now() - started) / 1000;
    if (!found.ok) return draw(answer, h("p", { class: "bad" }, found.body.error));
    draw(answer, shown(found.body, took));
  };
  offer(form.elements.lose, workers);
  place.replaceChildren(form, answer);
}

/** Workers come and go while the page is open; what is chosen stays chosen while it is there. */
function offer(select, workers) {
  const offered = [...select.options].slice(1).map((option) => option.value);
  if (offered.length === workers.length && offered.every((name, index) => name === workers[index])) return;
  const chosen = select.value;
  select.replaceChildren(select.options[0], ...workers.map((name) => h("option", { value: name }, name)));
  select.value = workers.includes(chosen) ? chosen : "";
}

function shown(body, took) {
  const kind = { holds: "good", worse: "warn", breaks: "bad" }[body.verdict] ?? "warn";
  const columns = [["Model"], ["Which"], ["Offered", "number"], ["In time", "number"], ["p50", "number"], ["p99", "number"],
    ["Deadline", "number"], ["Missed", "number"], ["Rejected", "number"], ["Busy", "number"]];
  const rows = body.models.flatMap((model) => [
    model.measured && measured(model),
    simulated(model, "today, simulated", model.today),
    simulated(model, "then", model.then),
  ].filter(Boolean));
  return [
    h("p", {}, h("strong", { class: `status ${kind}`, "data-verdict": body.verdict }, body.verdict), ` ${body.questions.join(", ")}`),
    body.sentences.map((text) => h("p", {}, text)),
    rows.length ? table("Answer", columns, rows) : "",
    body.trust.map((text) => h("p", { class: "hint" }, text)),
    Object.entries(body.left_out).map(([name, why]) => h("p", { class: "hint" }, `${name} is left out: ${why}`)),
    body.assumptions.length ? h("details", {}, h("summary", {}, `${body.assumptions.length} assumptions`), h("ul", {}, body.assumptions.map((text) => h("li", {}, text)))) : "",
    h("p", { class: "hint" }, `${body.requests} simulated requests in ${took.toFixed(1)} s`),
  ];
}

function simulated(model, which, each) {
  const over = model.deadline_ms && each.p99_ms > model.deadline_ms;
  return [model.name, which, rate(each.rate), rate(each.goodput), milliseconds(each.p50_ms),
    h("span", { class: over ? "bad" : null }, milliseconds(each.p99_ms)), model.deadline_ms ? milliseconds(model.deadline_ms) : "–",
    h("span", { class: each.missed > 0.01 ? "bad" : null }, percent(each.missed)), percent(each.rejected), percent(each.utilisation)];
}

function measured(model) {
  const each = model.measured;
  return [model.name, "today, measured", "–", "–", milliseconds(each.p50_ms), milliseconds(each.p99_ms),
    model.deadline_ms ? milliseconds(model.deadline_ms) : "–", percent(each.missed), percent(each.rejected), "–"];
}
