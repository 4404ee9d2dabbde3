// The first page: summary, map of workers, models, gateways.

import { draw, h, milliseconds, percent, rate, table } from "./drawing.js";

const LEVELS = ["idle", "busy", "queueing", "late", "overloaded"];

export function summary(place, { fleet, second }) {
  if (!fleet) return;
  const all = second?.models[""]?.shown;
  const workers = fleet.map.tiers.flatMap((tier) => tier.pools.flatMap((pool) => pool.workers));
  const serving = workers.filter((each) => each.state === "serving").length;
  const behind = fleet.map.gateways.filter((each) => each.is_behind).length;
  const unserved = fleet.map.models.filter((each) => each.fault).length;
  const cards = [
    ["Epoch", fleet.epoch || "none", behind ? `${behind} gateway${behind > 1 ? "s" : ""} behind` : "all gateways", behind],
    ["Workers", `${serving}/${workers.length}`, "serving", serving < workers.length],
    ["Models", fleet.map.models.length, unserved ? `${unserved} with a fault` : "served", unserved],
    ["Requests", rate(all?.rate ?? 0), `${percent(all?.missed)} missed`, all?.missed > 0.01],
    ["p99", milliseconds(all?.p99), `p50 ${milliseconds(all?.p50)}`, false],
    ["Leader", fleet.leader || "none", `generation ${fleet.generation}`, !fleet.leader],
  ];
  draw(place, cards.map(([title, value, note, bad]) =>
    h("div", { class: "figure" }, h("span", { class: "title" }, title), h("strong", {}, String(value)),
      h("span", { class: bad ? "note bad" : "note" }, note))));
}

export function fleetMap(place, { fleet, second }) {
  if (!fleet) return;
  if (!fleet.map.tiers.length) return draw(place, h("p", { class: "hint" }, "No worker is registered."));
  const legend = h("p", { class: "legend", "aria-hidden": "true" },
    LEVELS.map((name, level) => h("span", { class: `chip load-${level}` }, name)));
  const tiers = fleet.map.tiers.map((tier) =>
    h("div", { class: "tier", role: "group", "aria-label": tier.name ? `tier ${tier.name}` : "workers" },
      tier.name && h("h3", {}, `tier ${tier.name}`),
      tier.pools.map((pool) => h("div", { class: "pool" },
        h("h4", {}, pool.name || "no pool", h("span", { class: "hint" },
          ` ${pool.workers.length} worker${pool.workers.length === 1 ? "" : "s"}${pool.sizing ? ` · ${pool.sizing}` : ""}`)),
        h("ul", { class: pool.workers.length > 24 ? "tiles dense" : "tiles" },
          pool.workers.map((worker) => tile(worker, second?.workers[worker.name])))))));
  draw(place, legend, tiers);
}

function tile(worker, load) {
  const level = worker.state === "serving" && load ? load.level : null;
  const troubled = worker.fault || load?.trouble || ["gone", "faulty"].includes(worker.state);
  const state = troubled ? load?.trouble || worker.state : level === null ? worker.state : LEVELS[level];
  const about = [
    `${worker.name}: ${state}`,
    load && `${load.in_flight} in flight, ${load.queued} queued, wait ${milliseconds(load.wait_ms)}`,
    load?.round_trip_ms !== null && load?.round_trip_ms !== undefined && `round trip ${milliseconds(load.round_trip_ms)}`,
    worker.address, worker.device && `device ${worker.device}`,
    worker.versions.join(", "), worker.rollout && `rollout: ${worker.rollout}`, worker.fault,
  ].filter(Boolean).join("\n");
  return h("li", {
    class: `tile ${level === null ? `state-${worker.state}` : `load-${level}`}${troubled ? " troubled" : ""}`,
    title: about, tabindex: "0", "aria-label": about.replaceAll("\n", "; "), "data-id": `worker ${worker.name}`,
  },
    h("span", { class: "name" }, worker.name, worker.rollout && worker.rollout !== "ready" ? " ⟳" : ""),
    h("span", { class: "state" }, troubled ? `⚠ ${state}` : state),
    h("span", { class: "detail" }, load
      ? [h("span", {}, `${load.in_flight} in flight`), h("span", { class: "between" }, " · "), h("span", {}, `wait ${milliseconds(load.wait_ms)}`)]
      : worker.device || "–"),
    h("span", { class: "versions" }, worker.versions.join(" · ") || worker.fault || "–"));
}

export function models(place, { fleet, second }) {
  if (!fleet) return;
  const columns = [["Model"], ["Version"], ["State"], ["Requests", "number"], ["p50", "number"], ["p99", "number"],
    ["Deadline", "number"], ["Missed", "number"], ["Failed", "number"], ["Digest"]];
  const rows = fleet.map.models.map((model) => {
    const shown = second?.models[model.name]?.shown;
    const over = model.deadline_ms && shown && shown.p99 > model.deadline_ms;
    return [
      h("span", {}, model.name, model.stages.length ? h("span", { class: "hint" }, ` → ${model.stages.join(", ")}`) : ""),
      h("span", {}, model.version || "none", model.canary && h("span", { class: "chip" }, `canary ${model.canary} ${percent(model.canary_share)}`)),
      h("span", { class: `status ${stateKind(model)}`, title: model.fault || null }, model.fault ? `${model.state}: ${model.fault}` : model.state),
      rate(shown?.rate ?? 0), milliseconds(shown?.p50),
      h("span", { class: over ? "bad" : null }, milliseconds(shown?.p99)),
      model.deadline_ms ? milliseconds(model.deadline_ms) : "–",
      h("span", { class: shown?.missed > 0.01 ? "bad" : null }, percent(shown?.missed)),
      h("span", { class: shown?.failed > 0 ? "bad" : null }, percent(shown?.failed)),
      h("code", {}, model.digest || "–"),
    ];
  });
  draw(place, rows.length ? table("Models", columns, rows) : h("p", { class: "hint" }, "No model is served."));
}

export function stateKind(model) {
  if (model.fault || model.state === "unserved" || model.state === "aborting") return "bad";
  if (model.state === "serving") return "good";
  return "warn";
}

export function gateways(place, { fleet, second }) {
  if (!fleet) return;
  const columns = [["Gateway"], ["State"], ["Epoch", "number"], ["Requests", "number"], ["In flight", "number"],
    ["Own time", "number"], ["Retries", "number"], ["Hedges", "number"], ["Address"]];
  const rows = fleet.map.gateways.map((gateway) => {
    const now = second?.gateways[gateway.name];
    const state = gateway.state === "serving" && now && !now.is_reachable ? "no figures" : gateway.state;
    const kind = gateway.fault || gateway.state === "gone" ? "bad" : state === "serving" ? "good" : "warn";
    return [
      gateway.name, h("span", { class: `status ${kind}`, title: gateway.fault || null }, gateway.fault || state),
      h("span", { class: gateway.is_behind ? "warn" : null }, `${gateway.epoch}${gateway.is_behind ? " (behind)" : ""}`),
      rate(now?.rate ?? 0), String(now?.in_flight ?? "–"), milliseconds(now?.own_ms), String(now?.retries ?? "–"),
      String(now?.hedges ?? "–"), h("code", {}, gateway.address || "–"),
    ];
  });
  draw(place, rows.length ? table("Gateways", columns, rows) : h("p", { class: "hint" }, "No gateway is registered."));
}
