// Keeps the page true while somebody looks at it. The server says when what the page shows has changed; then
// the page is fetched again, and the elements marked data-live are swapped by their id. Nothing that somebody
// does is lost: focus, opened details, scrolling, and whatever is typed. Without this file a reload shows it.
"use strict";

(() => {
  const page = document.documentElement;
  const status = document.getElementById("live-state");
  const words = { live: "live", again: "reconnecting…", hidden: "paused" };
  let source = null;
  let busy = false;
  let missed = false; // something changed while we fetched
  let skipped = false; // a part was left alone, because somebody is at it

  function say(state) {
    if (page.dataset.state === state) return;
    page.dataset.state = state;
    status.textContent = words[state];
  }

  function connect() {
    if (source || document.hidden) return;
    const since = encodeURIComponent(page.dataset.shown);
    source = new EventSource(`${page.dataset.liveUrl}&since=${since}`);
    source.onopen = () => say("live");
    source.onerror = () => {
      say("again");
      if (source && source.readyState === EventSource.CLOSED) later(); // refused: it does not come back by itself
    };
    source.addEventListener("changed", refresh);
    source.addEventListener("gone", () => location.reload());
  }

  function close() {
    if (source) source.close();
    source = null;
  }

  function later() {
    close();
    setTimeout(async () => {
      const known = await fetchPage().catch(() => null);
      const refused = known && (known.redirected || known.status === 403 || known.status === 404);
      if (refused) location.reload(); // to the login, or to the page that says why
      else connect();
    }, 3000);
  }

  function fetchPage() {
    const headers = { Accept: "text/html", "X-Holdfast-Live": "1" };
    return fetch(location.href, { headers, cache: "no-store", credentials: "same-origin" });
  }

  async function refresh() {
    if (busy) {
      missed = true;
      return;
    }
    busy = true;
    try {
      const response = await fetchPage();
      if (response.redirected || response.status === 404) location.reload();
      else if (response.ok) swap(new DOMParser().parseFromString(await response.text(), "text/html"));
      else say("again");
    } catch {
      say("again");
    } finally {
      busy = false;
    }
    if (missed) {
      missed = false;
      refresh();
    }
  }

  function swap(fresh) {
    page.dataset.shown = fresh.documentElement.dataset.shown || "";
    document.title = fresh.title;
    skipped = false;
    for (const old of document.querySelectorAll("[data-live][id]")) {
      const next = fresh.getElementById(old.id);
      if (!next || old.parentElement.closest("[data-live]") || old.outerHTML === next.outerHTML) continue;
      if (typed(old)) skipped = true;
      else replace(old, next);
    }
  }

  // Somebody is filling in a form here: it is left alone.
  function typed(part) {
    return [...part.querySelectorAll("input, textarea, select")].some(
      (field) =>
        field.type !== "hidden" &&
        (field === document.activeElement || field.value !== (field.defaultValue ?? field.value) || field.checked !== field.defaultChecked),
    );
  }

  function replace(old, next) {
    const focused = old.contains(document.activeElement) ? path(old, document.activeElement) : null;
    const opened = [...old.querySelectorAll("details")].map((one) => one.open);
    const scrolled = [...old.querySelectorAll("*")].filter((one) => one.scrollLeft || one.scrollTop).map((one) => [path(old, one), one.scrollLeft, one.scrollTop]);
    const own = [old.scrollLeft, old.scrollTop];
    const open = old.tagName === "DETAILS" ? old.open : null;
    next = document.importNode(next, true);
    old.replaceWith(next);
    if (open !== null) next.open = open;
    [next.scrollLeft, next.scrollTop] = own;
    next.querySelectorAll("details").forEach((one, place) => {
      if (place in opened) one.open = opened[place];
    });
    for (const [way, left, top] of scrolled) {
      const one = follow(next, way);
      if (one) [one.scrollLeft, one.scrollTop] = [left, top];
    }
    if (focused) (follow(next, focused) || next).focus({ preventScroll: true });
  }

  // The way from an element down to one inside it: by address or id where it has one, else by its place.
  function path(top, element) {
    const href = element.getAttribute("href");
    if (element !== top && element.id) return { id: element.id };
    if (element !== top && href) return { href, place: [...top.querySelectorAll("[href]")].filter((one) => one.getAttribute("href") === href).indexOf(element) };
    const steps = [];
    for (let one = element; one !== top; one = one.parentElement) steps.unshift([...one.parentElement.children].indexOf(one));
    return { steps };
  }

  function follow(top, way) {
    if (way.id) return top.querySelector(`#${CSS.escape(way.id)}`);
    if (way.href) return [...top.querySelectorAll("[href]")].filter((one) => one.getAttribute("href") === way.href)[way.place];
    return way.steps.reduce((one, step) => one && one.children[step], top);
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
      say("hidden");
    } else {
      connect();
    }
  });
  document.addEventListener("focusout", () => skipped && setTimeout(refresh, 400));
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", connect);
  connect();
})();
