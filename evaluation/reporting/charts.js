// Charts: read off values by pointer or arrow keys, and save as SVG.
"use strict";

const numberText = (value, style, change) => {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  let digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : style === "signed" ? 2 : 3;
  let text;
  if (style === "share") text = (100 * value).toFixed(1) + " %";
  else if (style === "count") text = value.toFixed(1);
  else if (style === "seconds") text = value.toFixed(Math.abs(value) >= 10 ? 1 : 2) + " s";
  else if (value !== 0 && Math.abs(value) < 0.001 && style !== "signed") text = value.toExponential(1);
  else text = value.toFixed(digits);
  const zero = !/[1-9]/.test(text);
  if (zero) return text.replace(/^-/, "");
  return (value > 0 && (style === "signed" || change) ? "+" : "") + text.replace("-", "−");
};

// The small card beside whatever is pointed at: a title and pairs of name and value.
const card = {
  element: document.getElementById("tip"),
  show(box, title, pairs) {
    const list = document.createElement("dl");
    for (const [name, value] of pairs) {
      const term = document.createElement("dt"), told = document.createElement("dd");
      term.textContent = name;
      told.textContent = value;
      list.append(term, told);
    }
    this.element.replaceChildren(...title, list);
    this.element.hidden = false;
    const { offsetWidth, offsetHeight, style } = this.element;
    const left = Math.min(Math.max(box.left, 12), document.documentElement.clientWidth - offsetWidth - 12);
    const above = box.top - offsetHeight - 8;
    style.left = `${left + scrollX}px`;
    style.top = `${(above > 52 ? above : box.bottom + 8) + scrollY}px`;
  },
  hide() {
    this.element.hidden = true;
  },
};

(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const space = "http://www.w3.org/2000/svg";
  const scaleOf = (svg) => svg.dataset.scale.split(" ").map(Number);

  function readOff(svg, step) {
    const chart = charts[svg.dataset.chart];
    const [low, high, , , start, end, bottom, top] = scaleOf(svg);
    const steps = [...new Set(chart.lines.flatMap((line) => line.steps))];
    const nearest = steps.reduce((best, other) => (Math.abs(other - step) < Math.abs(best - step) ? other : best));
    let cursor = svg.querySelector(".cursor");
    if (!cursor) {
      cursor = document.createElementNS(space, "line");
      cursor.setAttribute("class", "cursor");
      cursor.setAttribute("y1", top);
      cursor.setAttribute("y2", bottom);
      svg.append(cursor);
    }
    const at = start + ((nearest - low) / (high - low || 1)) * (end - start);
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    svg.dataset.step = nearest;
    const pairs = chart.lines.filter((line) => line.steps.includes(nearest)).map((line) => {
      const index = line.steps.indexOf(nearest);
      const [mean, least, most] = [line.mean, line.low, line.high].map((values) => numberText(values[index], chart.style));
      return [line.label, line.banded ? `${mean} (${least} to ${most})` : mean];
    });
    card.show(cursor.getBoundingClientRect(), [`Step ${+nearest.toFixed(1)}`], pairs);
  }

  function leave(svg) {
    svg.querySelector(".cursor")?.remove();
    card.hide();
  }

  for (const svg of document.querySelectorAll("svg.chart[data-chart]")) {
    const [low, high, , , start, end] = scaleOf(svg);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      readOff(svg, low + ((x - start) / (end - start)) * (high - low));
    });
    svg.addEventListener("pointerleave", () => leave(svg));
    svg.addEventListener("blur", () => leave(svg));
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      const steps = charts[svg.dataset.chart].lines[0].steps;
      const now = steps.indexOf(Number(svg.dataset.step ?? steps[0]));
      readOff(svg, steps[Math.min(Math.max(now + move, 0), steps.length - 1)]);
    });
  }

  // A saved figure carries its own colours (those of the light page) and needs no style sheet.
  const shape = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity"];
  const lettering = ["fill", "font-family", "font-size", "font-weight"];
  window.svgText = (svg) => {
    leave(svg);
    document.documentElement.dataset.theme = "light";
    const copy = svg.cloneNode(true);
    const originals = svg.querySelectorAll("*");
    copy.querySelectorAll("*").forEach((element, index) => {
      const style = getComputedStyle(originals[index]);
      if (!["title", "desc"].includes(element.tagName)) {
        for (const name of element.tagName === "text" ? lettering : shape) {
          const value = style.getPropertyValue(name);
          if (name === "fill" || !["none", "1"].includes(value)) element.setAttribute(name, value);
        }
      }
      element.removeAttribute("class");
    });
    delete document.documentElement.dataset.theme;
    const { width, height } = svg.viewBox.baseVal;
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    for (const name of ["class", "tabindex", "data-chart", "data-scale", "data-step", "role"]) copy.removeAttribute(name);
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + new XMLSerializer().serializeToString(copy);
  };
  for (const button of document.querySelectorAll("button.save")) {
    button.addEventListener("click", () => {
      const shown = [...button.closest("figure").querySelectorAll("svg.chart")].find((svg) => svg.getClientRects().length);
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([window.svgText(shown)], { type: "image/svg+xml" }));
      link.download = `${button.dataset.name}.svg`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  }
})();
