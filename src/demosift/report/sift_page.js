// The ranking and the map. Text from files is in the document already and is only ever moved or compared here.
(() => {
  const content = JSON.parse(document.getElementById("sift").textContent);
  const { about, shown, levelsOf, say, hush, outline, colour } = strips;

  function fit(canvas) {
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    canvas.width = Math.max(1, Math.round(width * ratio));
    canvas.height = Math.max(1, Math.round(height * ratio));
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    return [pen, width, height];
  }

  const table = document.querySelector(".ranking table");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const find = document.getElementById("find");
  const counted = document.getElementById("counted");
  const texts = new Map(rows.map((row) => [row, `episode ${row.dataset.episode} ${row.textContent}`.toLowerCase()]));
  function search() {
    const wanted = find.value.trim().toLowerCase();
    const whole = /^\d+$/.test(wanted);
    let count = 0;
    for (const row of rows) {
      row.hidden = wanted !== "" && (whole ? row.dataset.episode !== wanted : !texts.get(row).includes(wanted));
      count += !row.hidden;
    }
    counted.textContent = wanted === "" ? "" : `${count} of ${rows.length}`;
  }
  find.addEventListener("input", search);
  for (const head of table.querySelectorAll("th[data-sort]")) {
    head.addEventListener("click", () => {
      const key = head.dataset.sort;
      const rises = head.getAttribute("aria-sort") !== "ascending";
      for (const other of table.querySelectorAll("th[data-sort]")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", rises ? "ascending" : "descending");
      const value = (row) => (row.dataset[key] ? Number(row.dataset[key]) : -Infinity);  // what nobody knows
      rows.sort((a, b) => (value(a) - value(b) || 0) * (rises ? 1 : -1));
      body.append(...rows);
    });
  }
  table.querySelector('th[data-sort="rank"]').setAttribute("aria-sort", "ascending");

  // Deciding about episodes by keyboard, and what happens in the one that is chosen.
  const decisions = new Map();
  const [panel, figure, decided] = ["decide", "signals", "decided"].map((id) => document.getElementById(id));
  const store = `demosift ${content.dataset}`;
  const visible = () => [...body.rows].filter((row) => !row.hidden);
  // What was named when the data were scored is in the file, too, so that the next round knows it.
  const { keep, drop } = content.named;
  const before = keep.length + drop.length ? `, besides ${keep.length} expert and ${drop.length} bad episodes that were named before` : "";
  let chosen;
  function keepInMind(row, choice) {
    const episode = Number(row.dataset.episode);
    choice ? decisions.set(episode, choice) : decisions.delete(episode);
    row.dataset.choice = choice;
    const count = (wanted) => [...decisions.values()].filter((one) => one === wanted).length;
    decided.textContent = decisions.size ? `${count("keep")} kept, ${count("drop")} dropped${before}` : "";
    try { sessionStorage.setItem(store, JSON.stringify([...decisions])); } catch { /* not from a file, in some browsers */ }
  }
  function choose(row) {
    if (!row) return;
    chosen?.classList.remove("chosen");
    chosen = row;
    row.classList.add("chosen");
    row.scrollIntoView({ block: "nearest" });
    drawSignals();
  }
  function drawSignals() {
    const own = chosen && content.signals[chosen.dataset.episode];
    figure.hidden = !own?.length;
    if (!own?.length) return;
    const films = document.querySelectorAll(`.card:not(.reference) .film[data-episode="${chosen.dataset.episode}"]`);
    for (const old of figure.querySelectorAll("img")) old.remove();
    figure.querySelector("figcaption").after(...[...films].map((film) => film.cloneNode()));
    figure.querySelector("figcaption").textContent = `Episode ${chosen.dataset.episode}: ${figure.dataset.names}, and the weight beneath`;
    const [pen, width, height] = fit(figure.querySelector("canvas"));
    const weights = levelsOf(chosen.querySelector("canvas").dataset.cells);
    const bar = 14, band = (height - bar) / own.length;
    const names = figure.dataset.names.split(", ");
    pen.strokeStyle = pen.fillStyle = outline();
    pen.font = "11px sans-serif";
    own.forEach((text, line) => {
      const levels = levelsOf(text);
      pen.globalAlpha = 0.75;
      pen.fillText(names[line] ?? "", 8, band * line + 12);
      pen.beginPath();
      levels.forEach((level, step) => pen.lineTo((width * step) / Math.max(levels.length - 1, 1), band * (line + 0.9 - 0.8 * (level / 60))));
      pen.stroke();
    });
    pen.globalAlpha = 1;
    weights.forEach((level, cell) => {
      pen.fillStyle = colour(level);
      pen.fillRect((width * cell) / weights.length, height - bar, width / weights.length + 1, bar);
    });
  }
  if (content.dataset) {
    panel.hidden = false;
    try {
      const known = new Map(JSON.parse(sessionStorage.getItem(store) || "[]"));
      for (const row of rows) if (known.has(Number(row.dataset.episode))) keepInMind(row, known.get(Number(row.dataset.episode)));
    } catch { /* as above */ }
    for (const row of rows) row.addEventListener("click", () => choose(row));
    document.addEventListener("keydown", (event) => {
      if (event.target === find || event.ctrlKey || event.metaKey || event.altKey) return;
      const listed = visible(), place = listed.indexOf(chosen);
      const choice = { k: "keep", d: "drop", u: "" }[event.key.toLowerCase()];
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        choose(listed[place < 0 ? 0 : place + (event.key === "ArrowDown" ? 1 : -1)]);
      } else if (choice !== undefined && chosen) {
        keepInMind(chosen, choice);
        if (choice) choose(listed[place + 1]);
      } else return;
      event.preventDefault();
    });
    document.getElementById("download").addEventListener("click", () => {
      const pick = (wanted, named) => [...named, ...[...decisions].filter(([, one]) => one === wanted).map(([episode]) => episode)].sort((a, b) => a - b);
      const text = JSON.stringify({ demosift: "decisions", dataset: content.dataset, keep: pick("keep", keep), drop: pick("drop", drop) });
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
      link.download = "decisions.json";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
    window.addEventListener("resize", drawSignals);
  }

  const map = content.map;
  const canvas = document.getElementById("map");
  const levels = levelsOf(map.level);
  const layers = [true, true];
  const layer = (index) => (index < map.expert ? 0 : 1);
  // The kept are drawn last, and the expert's rings over all.
  const order = levels.map((_, index) => index).sort((a, b) => layer(b) - layer(a) || levels[a] - levels[b] || a - b);
  let size = [1, 1];
  const place = (index) => [14 + (map.x[index] / 1000) * (size[0] - 28), 14 + (1 - map.y[index] / 1000) * (size[1] - 28)];
  function drawMap(marked) {
    const [pen, width, height] = fit(canvas);
    size = [width, height];
    for (const index of order) {
      if (!layers[layer(index)]) continue;
      const [x, y] = place(index);
      pen.beginPath();
      pen.arc(x, y, layer(index) ? 2.4 : 2.6, 0, 7);
      if (layer(index)) {
        pen.globalAlpha = 0.75;
        pen.fillStyle = colour(levels[index]);
        pen.fill();
      } else {
        pen.globalAlpha = 0.55;
        pen.strokeStyle = outline();
        pen.lineWidth = 0.9;
        pen.stroke();
      }
    }
    pen.globalAlpha = 1;
    if (marked !== undefined) {
      const [x, y] = place(marked);
      pen.beginPath();
      pen.arc(x, y, 6, 0, 7);
      pen.strokeStyle = outline();
      pen.lineWidth = 2;
      pen.stroke();
    }
  }
  function nearest(event) {
    const box = canvas.getBoundingClientRect();
    let best, least = 400;
    for (const index of order) {
      if (!layers[layer(index)]) continue;
      const [x, y] = place(index);
      const distance = (x - event.clientX + box.left) ** 2 + (y - event.clientY + box.top) ** 2;
      if (distance <= least) [best, least] = [index, distance];
    }
    return best;
  }
  const readMap = (event) => {
    const index = nearest(event);
    drawMap(index);
    if (index === undefined) return hush();
    const whose = layer(index) ? "pile" : "expert";
    say(event, `${whose}, episode ${map.episode[index]}, step ${map.step[index]}`, `weight ${about(levels[index], content.scale)}`);
  };
  canvas.addEventListener("pointermove", readMap);
  canvas.addEventListener("pointerdown", readMap);
  canvas.addEventListener("pointerleave", () => { hush(); drawMap(); });
  for (const button of document.querySelectorAll("[data-layer]"))
    button.addEventListener("click", () => {
      const which = Number(button.dataset.layer);
      layers[which] = !layers[which];
      button.setAttribute("aria-pressed", String(layers[which]));
      drawMap();
    });
  document.getElementById("low").textContent = shown(10 ** content.scale.low);
  document.getElementById("middle").textContent = shown(10 ** content.scale.middle);
  document.getElementById("high").textContent = shown(10 ** content.scale.high);

  drawMap();
  window.addEventListener("resize", () => drawMap());
  // After the strips' own listener, which reads the colours.
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawMap());
})();
