// Builds elements. Text from the fleet is always set as text, never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element: h("td", {class: "number"}, "5"). Children: texts, elements, or nothing (null, "", false). */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick" || name === "oninput" || name === "onchange" || name === "onsubmit") {
      element[name] = value;
    } else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  for (const child of children.flat(2)) {
    if (child !== null && child !== undefined && child !== false && child !== "") element.append(child);
  }
  return element;
}

/** What was drawn last into an element. Not read back from it: a reader may have opened a part of it since. */
const drawn = new WeakMap();

/**
 * Replaces an element's children if they differ: a reader's selection and focus stay where nothing changed. Parts that
 * a reader has opened stay open in any case, if their summaries have a data-id.
 */
export function draw(place, ...children) {
  const made = h("div", {}, ...children);
  const text = made.innerHTML;
  if (place.firstChild && drawn.get(place) === text) return;
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.id : null;
  const unfolded = new Set([...place.querySelectorAll("details[open] > summary[data-id]")].map((each) => each.dataset.id));
  place.replaceChildren(...made.childNodes);
  drawn.set(place, text);
  for (const each of unfolded.size ? place.querySelectorAll("details > summary[data-id]") : []) {
    if (unfolded.has(each.dataset.id)) each.parentElement.open = true;
  }
  if (focused) place.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus();
}

export function milliseconds(value) {
  if (value === undefined || value === null) return "–";
  if (value === 0) return "0";
  if (value < 1) return `${Math.round(value * 1000)} µs`;
  if (value < 100) return `${value.toFixed(value < 10 ? 2 : 1)} ms`;
  return value < 10000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`;
}

export function rate(value) {
  if (value === undefined || value === null) return "–";
  if (value >= 10000) return `${(value / 1000).toFixed(0)}k/s`;
  if (value >= 1000) return `${(value / 1000).toFixed(1)}k/s`;
  return `${value >= 10 ? Math.round(value) : Math.round(value * 10) / 10}/s`;
}

export function percent(share) {
  if (!share) return "0%";
  return `${Number((share * 100).toFixed(share < 0.01 ? 2 : share < 0.1 ? 1 : 0))}%`;
}

export function clock(at) {
  return at ? new Date(at * 1000).toLocaleTimeString([], { hour12: false }) : "–";
}

export function day(at) {
  const date = new Date(at * 1000);
  const today = new Date().toDateString() === date.toDateString();
  return today ? clock(at) : `${date.toLocaleDateString()} ${clock(at)}`;
}

/** A table whose cells name their column: on a phone, each row is drawn as a card. */
export function table(name, columns, rows) {
  const head = columns.map(([title, kind]) => h("th", { scope: "col", class: kind || null }, title));
  const body = rows.map((cells) =>
    h("tr", {}, cells.map((cell, index) => {
      const [title, kind] = columns[index];
      return h(index ? "td" : "th", { class: kind || null, "data-column": title, scope: index ? null : "row" }, cell);
    })),
  );
  return h("table", { "aria-label": name }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body));
}
