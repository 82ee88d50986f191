// Keeps the live parts of a page fresh: loads the page again every few seconds and takes over what has changed. A part
// that somebody works in, has opened or selects text of stays as it is meanwhile; a hidden page asks for nothing.
"use strict";

(() => {
  const main = document.getElementById("main");
  const everySeconds = Number(main.dataset.every || 0);
  if (!everySeconds) return;

  const bar = document.querySelector(".live");
  const state = bar.querySelector(".live-state");
  const button = bar.querySelector(".live-switch");
  let paused = false;
  let freshAt = new Date();
  bar.hidden = false;

  const inUse = (part) => {
    const selection = document.getSelection();
    const selecting = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
    const scrolled = [...part.querySelectorAll("pre")].some((block) => block.scrollTop > 0 || block.scrollLeft > 0);
    return selecting || scrolled || part.contains(document.activeElement) || part.querySelector("details[open]");
  };

  const takeOver = (text) => {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(part.id);
      if (other && !inUse(part) && other.innerHTML !== part.innerHTML) {
        part.replaceChildren(...document.adoptNode(other).childNodes);
      }
    }
    if (!fresh.getElementById("main").dataset.every) paused = true;
  };

  const say = () => {
    const stale = Date.now() - freshAt > 3000 * everySeconds;
    const clock = freshAt.toLocaleTimeString();
    bar.classList.toggle("stale", stale || paused);
    const text = paused ? "refresh is paused" : stale ? `no answer since ${clock}` : "live";
    if (state.textContent !== text) state.textContent = text;
  };

  const refresh = async () => {
    if (!paused && !document.hidden) {
      try {
        const response = await fetch(location.href, {
          headers: { "x-live": "1" },
          signal: AbortSignal.timeout(15000),
          redirect: "manual",
        });
        // Sent on to the login page: the session is over.
        if (response.type === "opaqueredirect") return location.reload();
        if (response.ok) {
          takeOver(await response.text());
          freshAt = new Date();
        }
      } catch {
        // The next round tries again, and `say` tells how old the page is.
      }
    }
    say();
    setTimeout(refresh, 1000 * everySeconds);
  };

  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    say();
  });
  say();
  setTimeout(refresh, 1000 * everySeconds);
})();
