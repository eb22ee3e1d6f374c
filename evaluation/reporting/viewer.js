// The responses: unpacked when they are shown, drawn with their spans or as heat, filtered, searched, side by side.
// Everything that a model or a user wrote enters the page as text, never as markup.
"use strict";

(() => {
  const PAGE = 8; // responses drawn together
  const POOR = 1, GOOD = 2, FAILED = 4, CUT = 8;
  const SERIES = { delta: 2, reward: 3, advantage: 4, shift: 5, kl: 6 };
  const NAMES = { delta: "δ", reward: "Reward", advantage: "Advantage", shift: "Change of log-prob.", kl: "KL" };
  const tip = document.getElementById("tip");
  const unpacked = new Map();
  let mode = "spans";
  let index = null;

  function numberText(value, signed) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    const text = value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : signed ? 2 : 3);
    if (!/[1-9]/.test(text)) return text.replace(/^-/, "");
    return (value > 0 && signed ? "+" : "") + text.replace("-", "−");
  }

  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
    return element;
  }

  function unpack(name) {
    if (!unpacked.has(name)) unpacked.set(name, inflate(name).then(JSON.parse));
    return unpacked.get(name);
  }

  async function inflate(name) {
    const raw = atob(document.getElementById(`pack-${name}`).textContent);
    const bytes = Uint8Array.from(raw, (character) => character.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  }

  async function fetchRollout(number) {
    const at = Math.floor(number / index.pack), place = number % index.pack;
    const [texts, numbers, prompts] = await Promise.all([`texts-${at}`, `numbers-${at}`, "prompts"].map(unpack));
    const [response, critique, error, good, poor, quotes] = texts[place];
    const columns = index.columns, run = index.runs[columns.run[number]];
    return {
      number, response, critique, error, good, poor, quotes, run,
      spans: run.spans,
      series: numbers[place],
      step: columns.step[number],
      mean: columns.mean[number],
      flags: columns.flags[number],
      promptId: index.prompts[columns.prompt[number]],
      prompt: prompts[columns.prompt[number]],
    };
  }

  // Drawing a response. Offsets count characters (code points), as they do where they were made.
  function cells(rollout) {
    const characters = Array.from(rollout.response);
    if (!rollout.series) return { characters, cells: [{ start: 0, end: characters.length, tokens: [] }] };
    const [gaps, lengths] = rollout.series;
    const found = [];
    let position = 0;
    gaps.forEach((gap, token) => {
      const start = position + gap, end = start + lengths[token];
      const last = found[found.length - 1];
      if (last && lengths[token] && start < last.end) { // tokens that share one character share its cell
        last.end = Math.max(last.end, end);
        last.tokens.push(token);
      } else {
        if (!last ? start > 0 : start > last.end) found.push({ start: last ? last.end : 0, end: start, tokens: [] });
        found.push({ start, end, tokens: [token] });
      }
      position = end;
    });
    return { characters, cells: found };
  }

  function kinds(rollout, length) {
    const kind = new Uint8Array(length);
    for (const [start, end] of rollout.good) kind.fill(GOOD, start, end);
    for (const [start, end] of rollout.poor) kind.fill(POOR, start, end);
    return kind;
  }

  function valueOf(rollout, tokens) {
    const series = rollout.series && rollout.series[SERIES[mode]];
    if (!series) return null;
    const values = tokens.map((token) => series[token]).filter((value) => value !== null);
    return values.length ? values.reduce((a, b) => (Math.abs(b) > Math.abs(a) ? b : a)) : null;
  }

  function paint(element) {
    const rollout = element.rollout;
    const { characters, cells: found } = cells(rollout);
    const kind = kinds(rollout, characters.length);
    const goodClass = rollout.spans.goodValue > 0 ? "good" : "neutral";
    const scale = index ? index.scales[mode] : 1;
    const heat = mode !== "spans" && rollout.series;
    const nodes = [];
    for (const cell of found) {
      const attributes = cell.tokens.length ? { "data-tokens": cell.tokens.join(" ") } : {};
      let background = null, sign = "";
      const value = heat && cell.tokens.length ? valueOf(rollout, cell.tokens) : null;
      if (value) {
        const strength = Math.min(Math.abs(value) / scale, 1);
        background = `rgba(var(--heat-${value > 0 ? "plus" : "minus"}), ${(0.06 + 0.5 * strength).toFixed(2)})`;
        if (strength > 0.33) sign = value > 0 ? " plus" : " minus";
      }
      if (cell.start === cell.end) {
        const end = make("span", { class: `t end${sign}`, ...attributes }, "end");
        if (background) end.style.background = background;
        nodes.push(end);
        continue;
      }
      let start = cell.start;
      while (start < cell.end) { // a token whose characters lie partly in a span is drawn in pieces
        let stop = start + 1;
        while (stop < cell.end && kind[stop] === kind[start]) stop += 1;
        const label = heat ? "" : kind[start] === GOOD ? goodClass : kind[start] === POOR ? "poor" : "";
        const piece = make("span", { class: `${cell.tokens.length ? "t " : ""}${label}${sign}`.trim() || null, ...attributes });
        piece.textContent = characters.slice(start, stop).join("");
        if (background) piece.style.background = background;
        nodes.push(piece);
        start = stop;
      }
    }
    element.replaceChildren(...nodes);
    if (!characters.length) element.append(make("em", {}, "(empty response)"));
  }

  function drawResponse(rollout) {
    const code = rollout.run.task === "kodcode";
    const element = make("p", { class: `response${code ? " code" : ""}` });
    element.rollout = rollout;
    paint(element);
    return element;
  }

  function drawCritique(rollout) {
    if (rollout.error) return make("p", { class: "critique failed" }, `No usable critique: ${rollout.error}. This response trained nothing.`);
    return make("p", { class: "critique" }, rollout.critique || "No critique was logged.");
  }

  function facts(rollout) {
    const [matched, unmatched, conflicts] = rollout.quotes;
    const bold = (text) => make("b", {}, text);
    return make("p", { class: "facts" },
      make("span", {}, "step ", bold(rollout.step)),
      make("span", {}, bold(rollout.run.label), ` seed ${rollout.run.seed}`),
      make("span", {}, `prompt ${rollout.promptId}`),
      rollout.mean !== null && make("span", {}, `mean ${rollout.run.measure} `, bold(numberText(rollout.mean, true))),
      matched + unmatched > 0 && make("span", {}, `${matched} of ${matched + unmatched} quotes found`),
      conflicts > 0 && make("span", {}, `${conflicts} tokens both praised and criticised`),
      rollout.flags & CUT ? make("span", { class: "warn" }, "cut off by the length limit") : null,
      rollout.flags & FAILED ? make("span", { class: "warn" }, "critic failed") : null);
  }

  function drawPrompt(text) {
    return make("details", { class: "prompt" }, make("summary", {}, "The prompt"), make("p", {}, text));
  }

  function drawRollout(rollout) {
    const sides = make("div", { class: "sides" }, drawResponse(rollout), drawCritique(rollout));
    return make("article", { class: "rollout" }, facts(rollout), sides, drawPrompt(rollout.prompt));
  }

  // What the colours mean, for the mode that is on.
  function drawLegend() {
    const legend = document.querySelector(".legend");
    legend.replaceChildren();
    if (mode === "spans") {
      for (const words of new Map(index.runs.map((run) => [run.task, run.spans])).values()) {
        const good = words.goodValue > 0 ? "good" : "neutral";
        legend.append(make("span", {}, make("span", { class: good }, words.good), " ", make("span", { class: "poor" }, words.poor)));
        legend.append(make("span", {}, `δ is ${words.values}.`));
      }
    } else {
      const scale = numberText(index.scales[mode]);
      const what = {
        delta: "The critic’s δ of the token, before placement and penalties.",
        reward: "The token’s reward in training: δ as placed and shaped, with penalties.",
        advantage: "Advantage: the return from this token on, relative to the value estimate. It scales the update.",
        shift: "Change of log-probability by the update: blue became more likely, orange less. Only some steps are rescored.",
        kl: "KL at the token: where the policy differs from its reference model.",
      }[mode];
      legend.append(make("span", {}, `−${scale}`, make("i", { class: "ramp" }), `+${scale}`), make("span", {}, what));
    }
  }

  function setMode(next) {
    mode = next;
    for (const element of document.querySelectorAll(".response")) if (element.rollout?.series) paint(element);
    drawLegend();
  }

  // A token's numbers, by pointer or touch.
  function showTip(piece) {
    hideTip();
    const rollout = piece.closest(".response").rollout;
    const tokens = piece.dataset.tokens.split(" ").map(Number);
    const parts = [...piece.parentNode.querySelectorAll(`[data-tokens="${piece.dataset.tokens}"]`)];
    parts.forEach((part) => part.classList.add("at"));
    const list = make("dl");
    for (const [key, column] of Object.entries(SERIES)) {
      const series = rollout.series[column];
      const told = series && tokens.map((token) => numberText(series[token], key !== "kl")).join(", ");
      list.append(make("dt", {}, NAMES[key]), make("dd", {}, told || "not logged"));
    }
    const shown = piece.classList.contains("end") ? "end of response" : parts.map((part) => part.textContent).join("");
    const name = make("b", { class: "mono" }, shown.replace(/\n/g, "⏎").replace(/ /g, "\u00b7"));
    tip.replaceChildren(name, ` token ${tokens[0] + 1} of ${rollout.series[0].length}`, list);
    tip.hidden = false;
    const box = piece.getBoundingClientRect(), above = box.top - tip.offsetHeight - 8;
    const left = Math.min(Math.max(box.left, 12), document.documentElement.clientWidth - tip.offsetWidth - 12);
    tip.style.left = `${left + scrollX}px`;
    tip.style.top = `${(above > 52 ? above : box.bottom + 8) + scrollY}px`;
  }
  function hideTip() {
    tip.hidden = true;
    document.querySelectorAll(".t.at").forEach((piece) => piece.classList.remove("at"));
  }
  for (const event of ["pointerover", "click"]) {
    document.addEventListener(event, ({ target }) => {
      const piece = target instanceof Element ? target.closest(".t[data-tokens]") : null;
      if (piece) showTip(piece);
      else hideTip();
    });
  }
  document.addEventListener("keydown", ({ key }) => { if (key === "Escape") hideTip(); });

  function browser(root) {
    const field = (name) => root.querySelector(`[name="${name}"]`);
    const list = root.querySelector(".list"), status = root.querySelector(".status"), more = root.querySelector(".listmore");
    const { run, step, prompt, mean, flags } = index.columns;
    const all = Uint32Array.from(run.keys()), orders = {};
    const by = { late: (a, b) => step[b] - step[a] || a - b, early: (a, b) => step[a] - step[b] || a - b,
      worst: (a, b) => mean[a] - mean[b] || a - b, best: (a, b) => mean[b] - mean[a] || a - b };
    const ordered = (name) => (orders[name] ??= all.slice().sort(by[name]));
    let hits = [], shown = 0, turn = 0;
    index.runs.forEach((item, number) => field("run").append(make("option", { value: number }, `${item.label}, ${item.task}, seed ${item.seed}`)));
    const last = step.reduce((a, b) => Math.max(a, b), 0);
    for (const [name, value] of [["from", step.reduce((a, b) => Math.min(a, b), last)], ["to", last]]) {
      field(name).value = field(name).placeholder = value;
    }

    async function search(query, isCurrent) {
      const wanted = query.toLowerCase(), prompts = await unpack("prompts");
      const has = (text) => text.toLowerCase().includes(wanted);
      const asked = prompts.map((text, number) => has(text) || has(index.prompts[number]));
      const found = Uint8Array.from(prompt, (number) => asked[number]);
      for (let at = 0; at * index.pack < run.length; at += 1) {
        const texts = await unpack(`texts-${at}`);
        if (!isCurrent()) return null;
        texts.forEach(([response, critique, error], place) => {
          if (has(response) || has(critique) || has(error)) found[at * index.pack + place] = 1;
        });
      }
      return found;
    }

    async function refresh() {
      const mine = (turn += 1);
      const query = field("query").value.trim();
      const found = query && await search(query, () => mine === turn);
      if (mine !== turn) return;
      const wanted = field("run").value;
      const from = Number(field("from").value || 0), to = Number(field("to").value || Infinity);
      const sign = {
        any: () => true,
        poor: (n) => flags[n] & POOR, good: (n) => flags[n] & GOOD, failed: (n) => flags[n] & FAILED, cut: (n) => flags[n] & CUT,
        negative: (n) => mean[n] !== null && mean[n] < 0, positive: (n) => mean[n] !== null && mean[n] > 0,
      }[field("sign").value];
      hits = Array.from(ordered(field("sort").value)).filter((n) => sign(n) && step[n] >= from && step[n] <= to && (!found || found[n])
        && (wanted === "all" || run[n] === Number(wanted)));
      const measures = new Set(hits.map((n) => index.runs[run[n]].measure)), told = hits.filter((n) => mean[n] !== null);
      const share = told.length && measures.size === 1
        ? `mean ${[...measures][0]} per token ${numberText(told.reduce((sum, n) => sum + mean[n], 0) / told.length, true)}` : "";
      status.replaceChildren(`${hits.length.toLocaleString("en")} of ${run.length.toLocaleString("en")} responses `, make("small", {}, share));
      shown = 0;
      list.replaceChildren();
      await showMore(mine);
    }

    async function showMore(mine) {
      const rollouts = await Promise.all(hits.slice(shown, shown + PAGE).map(fetchRollout));
      if (mine !== turn) return;
      list.append(...rollouts.map(drawRollout));
      if (!hits.length) list.append(make("p", { class: "empty" }, "No response matches these filters. Widen the steps, or clear the search."));
      shown += rollouts.length;
      more.hidden = shown >= hits.length;
      root.dataset.ready = turn;
    }

    let typing = 0;
    root.addEventListener("input", ({ target }) => {
      if (!target.name) return;
      clearTimeout(typing);
      typing = setTimeout(refresh, target.name === "query" ? 120 : 0);
    });
    more.addEventListener("click", () => showMore(turn));
    refresh();
  }

  // Responses of two systems to the same evaluation prompts.
  async function beforeAndAfter(root) {
    const pairs = await unpack("pairs");
    const systems = root.querySelector('[name="system"]'), choice = root.querySelector('[name="prompt"]');
    const back = root.querySelector(".back"), forth = root.querySelector(".forth");
    pairs.forEach((pair, number) => systems.append(make("option", { value: number }, `${pair.systems[1]} against ${pair.systems[0]}, ${pair.benchmark}`)));
    systems.closest("label").hidden = pairs.length < 2;
    function show() {
      const pair = pairs[systems.value], at = choice.selectedIndex;
      back.disabled = at <= 0;
      forth.disabled = at >= choice.length - 1;
      const drawn = [pair.before[at], pair.after[at]].map(([response, critique, error, good, poor, quotes], side) => {
        const answer = { response, critique, error, good, poor, quotes, spans: pair.spans, run: pair, series: null };
        return make("article", {}, make("h3", {}, pair.systems[side]), drawResponse(answer), critique || error ? drawCritique(answer) : null);
      });
      root.querySelector(".pair").replaceChildren(...drawn);
      root.querySelector(".place").replaceChildren(...(pair.prompts[at] ? [drawPrompt(pair.prompts[at])] : []));
      root.dataset.ready = at;
    }
    function fill() {
      choice.replaceChildren(...pairs[systems.value].ids.map((id) => make("option", {}, id)));
      show();
    }
    systems.addEventListener("input", fill);
    choice.addEventListener("input", show);
    back.addEventListener("click", () => { choice.selectedIndex -= 1; show(); });
    forth.addEventListener("click", () => { choice.selectedIndex += 1; show(); });
    fill();
  }

  async function start() {
    const answers = document.getElementById("answers");
    if (document.getElementById("pack-index")) {
      index = await unpack("index");
      document.querySelector(".mode").addEventListener("input", ({ target }) => setMode(target.value));
      drawLegend();
      browser(document.getElementById("rollouts"));
    }
    if (answers) await beforeAndAfter(answers);
  }
  start().catch((error) => {
    for (const place of document.querySelectorAll(".status")) place.textContent = `The responses cannot be shown: ${error.message}`;
    throw error;
  });
})();
