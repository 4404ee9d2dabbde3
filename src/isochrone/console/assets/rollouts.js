// Rollouts and canaries, and the versions that are served.

import { actionButton } from "./actions.js";
import { clock, day, draw, h, milliseconds, percent, rate, table } from "./drawing.js";
import { stateKind } from "./fleet.js";

export function rollouts(place, { fleet, second }) {
  if (!fleet) return;
  if (!fleet.rollouts.length) return draw(place, h("p", { class: "hint" }, "There has been no rollout."));
  draw(place, fleet.rollouts.map((each) => (each.is_over ? past(each) : open(each, second))));
}

function open(rollout, second) {
  const total = Object.values(rollout.workers).reduce((sum, each) => sum + each, 0);
  const comparisons = (second?.comparisons ?? []).filter((each) => each.rollout === rollout.identity);
  return h("article", { class: "rollout", "aria-label": `rollout ${rollout.identity}`, "data-rollout": rollout.identity, "data-state": rollout.state },
    h("div", { class: "rollout-head" },
      h("strong", {}, rollout.identity), h("span", { class: "status warn" }, rollout.state), h("span", {}, rollout.summary),
      h("span", { class: "hint" }, `${rollout.kind}, ${rollout.cutover}, by ${rollout.by}, since ${clock(rollout.at)}`)),
    h("ol", { class: "steps" }, rollout.steps.map((step) =>
      h("li", { class: step.place, "aria-current": step.place === "now" ? "step" : null }, step.state))),
    rollout.weights.length ? h("p", { class: "weights" }, "canary: ", rollout.weights.map((weight, index) =>
      h("span", { class: index === rollout.step && rollout.state === "canary" ? "chip now" : "chip" }, percent(weight)))) : "",
    total ? h("p", {}, `workers: ${Object.entries(rollout.workers).map(([state, count]) => `${count} ${state}`).join(", ")}`) : "",
    rollout.waiting.some((each) => each.detail) ? h("ul", { class: "plain" }, rollout.waiting.filter((each) => each.detail).slice(0, 8).map((each) =>
      h("li", {}, `${each.name}: ${each.state}: ${each.detail}`))) : "",
    comparisons.length ? table("Versions beside each other", [["Version"], ["Requests", "number"], ["p50", "number"], ["p95", "number"], ["p99", "number"], ["Failed", "number"]],
      comparisons.flatMap((each) => [[each.before, each.before_figures, "now"], [each.after, each.after_figures, "new"]].map(([version, figures, which]) =>
        [`${each.model} ${version} (${which})`, rate(figures.rate), milliseconds(figures.p50), milliseconds(figures.p95), milliseconds(figures.p99), percent(figures.failed)]))) : "",
    rollout.verdicts.length ? h("ul", { class: "plain" }, rollout.verdicts.map((each) =>
      h("li", {}, h("span", { class: each.passed ? "good" : "bad" }, each.passed ? "✓ " : "✗ "), `${each.of}: ${each.reason}`))) : "",
    rollout.note ? h("p", { class: "hint" }, rollout.note) : "",
    rollout.actions.length ? h("div", { class: "buttons" }, rollout.actions.map((kind) =>
      actionButton(kind, rollout.identity, kind === "promote" ? "Promote…" : "Abort…", kind === "abort"))) : "");
}

function past(rollout) {
  return h("details", { class: "rollout past", "data-rollout": rollout.identity, "data-state": rollout.state },
    h("summary", { "data-id": `rollout ${rollout.identity}` }, h("strong", {}, rollout.identity), " ",
      h("span", { class: `status ${rollout.state === "done" ? "good" : "bad"}` }, rollout.state), " ", rollout.summary, " ",
      h("span", { class: "hint" }, `${rollout.kind}, by ${rollout.by}, ${day(rollout.at)}`)),
    rollout.note ? h("p", {}, rollout.note) : "",
    h("p", { class: "hint" }, rollout.steps.filter((step) => step.at).map((step) => `${step.state} ${clock(step.at)}`).join(" → ")),
    rollout.verdicts.length ? h("ul", { class: "plain" }, rollout.verdicts.map((each) => h("li", {}, `${each.passed ? "✓" : "✗"} ${each.of}: ${each.reason}`))) : "");
}

export function servedVersions(place, { fleet }) {
  if (!fleet) return;
  const rows = fleet.map.models.map((model) => [
    model.name,
    h("span", { "data-version-of": model.name }, model.version || "none"),
    model.canary ? `${model.canary} (${percent(model.canary_share)})` : "–",
    model.previous || "–",
    h("span", { class: `status ${stateKind(model)}` }, model.state),
    model.previous || model.canary ? actionButton("rollback", model.name, "Roll back…", true) : "",
  ]);
  draw(place, table("Served versions", [["Model"], ["Version"], ["Canary"], ["Previous"], ["State"], [""]], rows));
}
