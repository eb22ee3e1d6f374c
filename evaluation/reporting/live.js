// A page of runs that still train: it loads itself again, unless somebody is reading closely or has paused it.
"use strict";

(() => {
  const bar = document.getElementById("live");
  if (!bar) return;
  const button = bar.querySelector("button"), told = bar.querySelector(".left"), key = `open ${location.pathname}`;
  const folds = [...document.querySelectorAll("main > section > details, header details")];
  const every = Number(bar.dataset.seconds);
  let left = every, paused = false;

  const kept = JSON.parse(sessionStorage.getItem(key) || "null");
  if (kept) {
    kept.open.forEach((at) => { if (folds[at]) folds[at].open = true; });
    const search = document.querySelector('#rollouts [name="query"]');
    if (search) search.value = kept.query;
  }
  const isBusy = () => document.hidden || document.activeElement?.matches("input, select, .response") || !document.getElementById("tip").hidden;

  setInterval(() => {
    if (paused || isBusy()) return;
    left -= 1;
    told.textContent = `next look in ${Math.max(left, 0)} s`;
    if (left > 0) return;
    const open = folds.flatMap((fold, at) => (fold.open ? [at] : []));
    sessionStorage.setItem(key, JSON.stringify({ open, query: document.querySelector('#rollouts [name="query"]')?.value || "" }));
    location.reload();
  }, 1000);
  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "Follow again" : "Pause";
    told.textContent = paused ? "paused" : "";
    left = every;
  });
})();
