"use strict";
// The cursor and the toggles. Everything is drawn and formatted already; text from files is only ever set as text.
(() => {
  const hidden = new Set();
  const charts = [...document.querySelectorAll(".chart")].map((figure) => ({
    figure,
    plot: figure.querySelector(".plot"),
    cursor: figure.querySelector(".cursor"),
    tip: figure.querySelector(".tip"),
    lines: JSON.parse(figure.querySelector("script").textContent).lines,
    at: null,
  }));

  const element = (tag, className, text) => {
    const made = document.createElement(tag);
    made.className = className;
    made.textContent = text;
    return made;
  };

  const visible = (chart) => chart.lines.filter((line) => !hidden.has(line.key));
  const positions = (chart) => [...new Set(visible(chart).flatMap((line) => line.x))].sort((a, b) => a - b);
  const nearest = (values, x) =>
    values.reduce((best, value) => (Math.abs(value - x) < Math.abs(best - x) ? value : best), values[0]);

  function hide(chart) {
    chart.at = null;
    chart.cursor.hidden = chart.tip.hidden = true;
  }

  function show(chart, x) {
    if (x === undefined) return hide(chart);
    chart.at = x;
    chart.cursor.style.left = `${100 * x}%`;
    const rows = [];
    let title = "";
    for (const line of visible(chart)) {
      const index = line.x.indexOf(x);
      if (index < 0) continue;
      title = title || line.title[index];
      const row = element("p", line.style, "");
      row.append(element("i", "dot", ""), element("span", "", line.name), element("b", "", line.value[index]));
      rows.push(row);
    }
    chart.tip.replaceChildren(element("p", "", title), ...rows);
    chart.cursor.hidden = chart.tip.hidden = false;
    const room = chart.plot.clientWidth - chart.tip.offsetWidth;
    const right = x * chart.plot.clientWidth + 14;
    const left = right - 28 - chart.tip.offsetWidth;
    chart.tip.style.left = `${right <= room ? right : left >= 0 ? left : Math.max(0, room / 2)}px`;
  }

  function point(chart, event) {
    const box = chart.plot.getBoundingClientRect();
    show(chart, nearest(positions(chart), (event.clientX - box.left) / box.width));
  }

  function step(chart, event) {
    const places = positions(chart);
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") hide(chart);
    if (!move || !places.length || event.target !== chart.figure) return;
    event.preventDefault();
    const from = chart.at === null ? (move > 0 ? -1 : places.length) : places.indexOf(nearest(places, chart.at));
    show(chart, places[Math.min(Math.max(from + move, 0), places.length - 1)]);
  }

  function toggle(key) {
    hidden.has(key) ? hidden.delete(key) : hidden.add(key);
    for (const one of document.querySelectorAll("[data-key]")) {
      if (one.dataset.key !== key) continue;
      if (one.matches("button")) one.setAttribute("aria-pressed", String(!hidden.has(key)));
      else one.classList.toggle("off", hidden.has(key));
    }
    charts.forEach(hide);
  }

  for (const chart of charts) {
    chart.plot.addEventListener("pointermove", (event) => point(chart, event));
    chart.plot.addEventListener("pointerdown", (event) => point(chart, event));
    chart.plot.addEventListener("pointerleave", () => hide(chart));
    chart.figure.addEventListener("keydown", (event) => step(chart, event));
    chart.figure.addEventListener("blur", () => hide(chart));
  }
  for (const button of document.querySelectorAll("button.key"))
    button.addEventListener("click", () => toggle(button.dataset.key));
})();
