// A few keys: / goes to the filter, g o to the overview, j and k from row to row, Escape out of a field.
"use strict";

(() => {
  let waiting = 0; // when g was pressed

  function rows(step) {
    const links = [...document.querySelectorAll("a.row-link")];
    if (!links.length) return;
    const now = links.indexOf(document.activeElement);
    const next = now < 0 ? (step > 0 ? 0 : links.length - 1) : Math.min(Math.max(now + step, 0), links.length - 1);
    links[next].focus();
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const field = event.target.closest("input, textarea, select, [contenteditable]");
    if (field && !["checkbox", "radio"].includes(field.type)) {
      if (event.key === "Escape") field.blur();
      return;
    }
    const filter = document.querySelector("[data-filter]");
    if (event.key === "/" && filter) {
      event.preventDefault();
      filter.focus();
      filter.select();
    } else if (event.key === "g") {
      waiting = Date.now();
    } else if (event.key === "o" && Date.now() - waiting < 1000) {
      document.querySelector("a.brand").click();
    } else if (event.key === "j") {
      rows(1);
    } else if (event.key === "k") {
      rows(-1);
    }
  });
})();
