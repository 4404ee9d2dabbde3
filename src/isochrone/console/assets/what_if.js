// What if: asks the simulator, and shows its answer beside today's figures.

import { h } from "./drawing.js";

export function whatIf(place) {
  if (!place.childElementCount) place.replaceChildren(h("p", { class: "hint" }, "This controller has no simulator."));
}
