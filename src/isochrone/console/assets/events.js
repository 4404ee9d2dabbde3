// The events of the fleet, with a filter.

import { day, draw, h, table } from "./drawing.js";

let wanted = "";

export function events(place, { fleet }) {
  if (!fleet) return;
  if (!place.querySelector("input")) {
    const field = h("input", { type: "search", placeholder: "Filter", "aria-label": "Filter events", "data-filter": true });
    field.oninput = () => {
      wanted = field.value.toLowerCase();
      document.dispatchEvent(new CustomEvent("isochrone-redraw"));
    };
    place.replaceChildren(field, h("div", {}));
  }
  const found = fleet.events.filter((each) =>
    !wanted || [each.who, each.what, each.about, each.detail].some((text) => text.toLowerCase().includes(wanted)));
  const rows = found.map((each) => [day(each.at), each.what, each.about || "–", each.detail || "–", each.who]);
  draw(place.lastElementChild, rows.length
    ? table("Events", [["Time"], ["Event"], ["About"], ["Detail"], ["By"]], rows)
    : h("p", { class: "hint" }, wanted ? "No event has this text." : "There has been no event."));
}
