// Latencies: the waterfall of every model, and percentiles and the heat map of the chosen one.

import { clock, draw, h, milliseconds, percent, rate, s } from "./drawing.js";

const RANGES = [[300, "5 minutes"], [3600, "1 hour"], [86400, "24 hours"]];
/** Seconds without a column after which the columns are asked for again: the stream leaves out what a browser missed. */
const GAP = 3;
/** Columns of a second are added as the stream brings them; longer ranges are asked for again, in seconds. */
const AGAIN = { 3600: 10, 86400: 60 };
const LINES = ["p99", "p95", "p50"];
const chosen = { model: null, seconds: 300 };
let columns = null;
let asking = "";
let asked = 0;

export function waterfall(place, { fleet, second }) {
  if (!fleet || !second) return;
  const rows = fleet.map.models.map((model) => [model, second.models[model.name]]).filter(([, each]) => each?.shown.rate);
  if (!rows.length) return draw(place, h("p", { class: "hint" }, "No request in the last 10 seconds."));
  const legend = h("p", { class: "legend" }, ["gateway", "network", "queue", "compute"].map((stage) =>
    h("span", {}, h("i", { class: `swatch stage-${stage}` }), stage)), h("span", {}, h("i", { class: "swatch deadline" }), "deadline"));
  draw(place, legend, rows.map(([model, each]) => bar(model, each)));
}

function bar(model, { shown, waterfall: fall }) {
  const spent = fall.segments.reduce((sum, each) => sum + each.ms, 0);
  // On the scale of the deadline, or of what was longer than it.
  const scale = Math.max(fall.budget_ms, shown.p99, spent) || 1;
  const wide = (ms) => `${Math.min(100, (100 * ms) / scale).toFixed(2)}%`;
  const over = fall.budget_ms && shown.p99 > fall.budget_ms;
  const left = fall.budget_ms ? fall.budget_ms - shown.p99 : null;
  const words = fall.segments.map((each) => `${each.stage} ${milliseconds(each.ms)}`).join(", ");
  return h("div", { class: "fall", role: "group", "aria-label": `${model.name}: ${words}` },
    h("div", { class: "fall-name" }, h("strong", {}, model.name), h("span", { class: "hint" }, ` ${rate(shown.rate)}`)),
    h("div", { class: "fall-bar" },
      fall.segments.map((each) => h("i", {
        class: `part stage-${each.stage === "worker and network" ? "network" : each.stage}`,
        style: `width: ${wide(each.ms)}`, title: `${each.stage} ${milliseconds(each.ms)}`,
      })),
      h("i", { class: "mark p99", style: `left: ${wide(shown.p99)}`, title: `p99 ${milliseconds(shown.p99)}` }),
      fall.budget_ms ? h("i", { class: "mark deadline", style: `left: ${wide(fall.budget_ms)}`, title: `deadline ${milliseconds(fall.budget_ms)}` }) : ""),
    h("div", { class: "fall-words" }, words || "no stage is measured", ` · mean ${milliseconds(fall.mean_ms)} · `,
      h("span", { class: over ? "bad" : null }, `p99 ${milliseconds(shown.p99)}`),
      fall.budget_ms ? ` of ${milliseconds(fall.budget_ms)}${left >= 0 ? `, ${milliseconds(left)} left` : ""}` : " · no deadline",
      shown.missed ? h("span", { class: shown.missed > 0.01 ? "bad" : null }, ` · ${percent(shown.missed)} missed`) : ""));
}

export function chooser(place, { fleet, second }) {
  if (!fleet) return;
  const names = fleet.map.models.map((model) => model.name);
  // Without figures yet, nothing is chosen: a model without requests would show an empty chart.
  if (chosen.model === null) {
    if (!second) return;
    chosen.model = busiest(fleet.map.models, second);
    follow({ second });
  }
  const options = ["", ...names].map((name) =>
    h("option", { value: name, selected: name === chosen.model }, name || "all models"));
  const ranges = RANGES.map(([seconds, text]) => h("button", {
    type: "button", class: "button", "data-id": `range ${seconds}`, "data-seconds": seconds,
    "aria-pressed": String(chosen.seconds === seconds),
  }, text));
  draw(place, h("label", {}, "Model ", h("select", { "data-model": true, "data-id": "model" }, options)), h("span", { class: "ranges" }, ranges));
  const select = place.querySelector("select");
  select.onchange = () => choose(select.value, chosen.seconds);
  for (const button of place.querySelectorAll("[data-seconds]")) button.onclick = () => choose(chosen.model, Number(button.dataset.seconds));
}

/** A pipeline with requests, or the model with the most; "" (all models) if none has any. */
function busiest(models, second) {
  const rate = (model) => second.models[model.name]?.shown.rate ?? 0;
  const called = models.filter(rate).sort((one, other) => rate(other) - rate(one));
  return (called.find((model) => model.stages.length) ?? called[0])?.name ?? "";
}

function choose(model, seconds) {
  Object.assign(chosen, { model, seconds });
  columns = null;
  document.dispatchEvent(new CustomEvent("isochrone-redraw"));
}

async function ask() {
  const wanted = `${chosen.model} ${chosen.seconds}`;
  if (asking === wanted) return;
  asking = wanted;
  asked = performance.now();
  try {
    const query = new URLSearchParams({ model: chosen.model, seconds: chosen.seconds });
    const response = await fetch(`/console/history?${query}`, { cache: "no-store" });
    const found = response.ok ? await response.json() : null;
    // Without an answer, the next second asks again.
    if (!found || wanted !== `${chosen.model} ${chosen.seconds}`) return;
    columns = found;
  } catch (error) {
    return console.warn("history", error);
  } finally {
    if (asking === wanted) asking = "";
  }
  document.dispatchEvent(new CustomEvent("isochrone-redraw"));
}

/** Adds the last second to the columns, or asks for them. */
export function follow({ second }) {
  if (chosen.model === null || !document.querySelector('[data-live="percentiles"]')) return;
  const every = AGAIN[chosen.seconds];
  if (!columns || (every && performance.now() - asked > every * 1000)) return void ask();
  const now = second?.models[chosen.model];
  const last = columns.at.at(-1) ?? 0;
  if (every || !second || !second.at || second.at <= last) return;
  // Once in a while: the controller may have a gap itself.
  if (second.at - last > GAP && performance.now() - asked > GAP * 1000) return void ask();
  const point = now?.point ?? { rate: 0, p50: 0, p95: 0, p99: 0, missed: 0 };
  columns.at.push(second.at);
  for (const name of ["rate", "p50", "p95", "p99", "missed"]) columns[name].push(point[name]);
  columns.heat.columns.push(now?.heat ?? {});
  while (columns.at[0] <= second.at - columns.seconds) {
    for (const name of ["at", "rate", "p50", "p95", "p99", "missed"]) columns[name].shift();
    columns.heat.columns.shift();
  }
}

/** 1, 2 or 5 times a power of ten, at least the value. */
function rounded(value) {
  const power = 10 ** Math.floor(Math.log10(value || 1));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= value * 0.999);
}

export function percentiles(place, { fleet }) {
  if (!columns) return;
  const width = Math.max(300, place.clientWidth), height = 220, left = 52, bottom = 24, top = 8;
  const { at, step, seconds } = columns;
  const deadline = fleet?.map.models.find((model) => model.name === columns.model)?.deadline_ms || 0;
  const highest = Math.max(...columns.p99, 0);
  if (!highest) return draw(place, h("p", { class: "hint" }, "No answered request in this time."));
  const most = rounded(deadline && deadline < highest * 4 ? Math.max(highest, deadline) : highest);
  const end = at.at(-1) ?? Date.now() / 1000;
  const x = (time) => left + ((time - (end - seconds)) / seconds) * (width - left - 8);
  const y = (ms) => height - bottom - (Math.min(ms, most) / most) * (height - bottom - top);
  const grid = [0, 0.25, 0.5, 0.75, 1].map((share) => s("g", {},
    s("line", { x1: left, x2: width - 8, y1: y(share * most), y2: y(share * most), class: "grid" }),
    s("text", { x: left - 6, y: y(share * most) + 4, "text-anchor": "end" }, milliseconds(share * most))));
  const times = [0, 0.5, 1].map((share) => s("text", {
    x: x(end - seconds * (1 - share)), y: height - 6, "text-anchor": ["start", "middle", "end"][share * 2],
  }, clock(end - seconds * (1 - share))));
  const lines = LINES.map((name) => {
    let path = "";
    let before = null;
    at.forEach((time, index) => {
      // A second without an answer has no percentile: the line has a gap there.
      const value = columns[name][index];
      if (value) path += `${before !== null && time - before <= 2 * step ? "L" : "M"}${x(time).toFixed(1)} ${y(value).toFixed(1)}`;
      if (value) before = time;
    });
    return s("path", { d: path, class: `line ${name}` });
  });
  const last = columns.at.length - 1;
  const now = LINES.map((name) => `${name} ${milliseconds(columns[name][last])}`).join(", ");
  const image = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `Percentiles of ${columns.model || "all models"}: now ${now}` },
    grid, times, lines,
    deadline && deadline <= most ? s("line", { x1: left, x2: width - 8, y1: y(deadline), y2: y(deadline), class: "deadline" }) : "");
  draw(place, h("p", { class: "legend" }, [...LINES].reverse().map((name) =>
    h("span", {}, h("i", { class: `swatch ${name}` }), `${name} ${milliseconds(columns[name][last])}`)),
    h("span", {}, rate(columns.rate[last] ?? 0))), image);
}

export function heatMap(place) {
  if (!columns) return;
  const rows = columns.heat.bounds_ms.length + 1;
  const used = columns.heat.columns.flatMap((column) => Object.keys(column).map(Number));
  if (!used.length) return draw(place, h("p", { class: "hint" }, "No answered request in this time."));
  const low = Math.max(0, Math.min(...used) - 1), high = Math.min(rows - 1, Math.max(...used) + 1);
  let canvas = place.querySelector("canvas");
  if (!canvas) {
    draw(place, h("canvas", { role: "img" }));
    canvas = place.querySelector("canvas");
  }
  const sharp = window.devicePixelRatio || 1;
  const width = Math.max(300, place.clientWidth), left = 52, bottom = 22;
  const tall = Math.max(8, Math.min(16, 240 / (high - low + 1)));
  const height = Math.round(tall * (high - low + 1)) + bottom;
  canvas.width = width * sharp;
  canvas.height = height * sharp;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const style = getComputedStyle(document.documentElement);
  const context = canvas.getContext("2d");
  context.scale(sharp, sharp);
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = style.getPropertyValue("--muted");
  context.textAlign = "right";
  const every = Math.max(1, Math.ceil(16 / tall));
  for (let row = low; row <= high; row += 1) {
    const bound = row < rows - 1 ? milliseconds(columns.heat.bounds_ms[row]) : "more";
    if ((row - low) % every === 0) context.fillText(bound, left - 6, height - bottom - (row - low) * tall - 1);
  }
  const end = columns.at.at(-1);
  const cell = (width - left - 8) / (columns.seconds / columns.step);
  const most = Math.max(...columns.heat.columns.flatMap((column) => Object.values(column)), 1);
  context.fillStyle = style.getPropertyValue("--heat");
  columns.at.forEach((time, index) => {
    if (time <= end - columns.seconds) return;
    const x = left + ((time - (end - columns.seconds)) / columns.step) * cell - cell;
    for (const [bucket, count] of Object.entries(columns.heat.columns[index])) {
      // By the logarithm: one slow request among a thousand must be seen.
      context.globalAlpha = 0.18 + 0.82 * (Math.log1p(count) / Math.log1p(most));
      context.fillRect(x, height - bottom - (Number(bucket) - low + 1) * tall, Math.ceil(cell), tall - 1);
    }
  });
  context.globalAlpha = 1;
  context.fillStyle = style.getPropertyValue("--muted");
  context.textAlign = "left";
  context.fillText(clock(end - columns.seconds), left, height - 6);
  context.textAlign = "right";
  context.fillText(clock(end), width - 8, height - 6);
  canvas.setAttribute("aria-label", `Heat map of ${columns.model || "all models"}: durations from `
    + `${low ? milliseconds(columns.heat.bounds_ms[low - 1]) : "0"} to ${high < rows - 1 ? milliseconds(columns.heat.bounds_ms[high]) : "more"}`);
}
