// Strips, the ranking and the map. Text from files is in the document already and is only ever moved or compared here.
(() => {
  const content = JSON.parse(document.getElementById("sift").textContent);
  const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  const middle = 30;
  const { low, middle: threshold, high } = content.scale;

  const weightOf = (level) =>
    10 ** (level < middle ? low + (level / middle) * (threshold - low) : threshold + (level / middle - 1) * (high - threshold));
  const shown = (value) => (value >= 0.001 && value < 10000 ? String(Number(value.toPrecision(2))) : value.toExponential(0));
  const about = (level) => (level === 0 ? "at most " : level === 2 * middle ? "at least " : "about ") + shown(weightOf(level));

  let palette = [];
  let outline = "";
  const mix = (a, b, share) => a.map((value, index) => Math.round(value + (b[index] - value) * share));
  const css = (colour) => `rgb(${colour.join(" ")})`;
  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const [bad, even, good, ink] = ["--noisy", "--rule", "--clean", "--ink"].map((name) => {
      const hex = style.getPropertyValue(name).trim().replace(/^#(.)(.)(.)$/, "#$1$1$2$2$3$3");
      return [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
    });
    palette = Array.from({ length: 2 * middle + 1 }, (_, level) =>
      level < middle ? mix(bad, even, (level / middle) ** 1.5) : mix(even, good, Math.sqrt((level - middle + 4) / (middle + 4))));
    outline = css(ink);
  }

  function fit(canvas) {
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    canvas.width = Math.max(1, Math.round(width * ratio));
    canvas.height = Math.max(1, Math.round(height * ratio));
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    return [pen, width, height];
  }

  const float = document.body.appendChild(document.createElement("div"));
  float.id = "float";
  float.className = "tip";
  float.hidden = true;
  function say(event, ...lines) {
    float.replaceChildren(...lines.map((line) => {
      const row = document.createElement("p");
      row.textContent = line;
      return row;
    }));
    float.hidden = false;
    const x = Math.min(event.clientX + 14, window.innerWidth - float.offsetWidth - 8);
    const y = event.clientY + 18 + float.offsetHeight > window.innerHeight ? event.clientY - 12 - float.offsetHeight : event.clientY + 18;
    float.style.transform = `translate(${Math.max(4, x)}px, ${Math.max(4, y)}px)`;
  }
  const hush = () => { float.hidden = true; };

  const strips = [...document.querySelectorAll("canvas.cells")].map((canvas) => ({
    canvas,
    rows: Number(canvas.dataset.rows),
    levels: [...canvas.dataset.cells].map((letter) => alphabet.indexOf(letter)),
  }));
  function drawStrip({ canvas, levels }) {
    // A pixel for each cell; the style sheet stretches them.
    [canvas.width, canvas.height] = [levels.length, 1];
    const pen = canvas.getContext("2d");
    const image = pen.createImageData(levels.length, 1);
    levels.forEach((level, index) => image.data.set([...palette[level], 255], 4 * index));
    pen.putImageData(image, 0, 0);
  }
  for (const { canvas, levels, rows } of strips) {
    const read = (event) => {
      const box = canvas.getBoundingClientRect();
      const cell = Math.min(levels.length - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * levels.length)));
      const [from, to] = [cell, cell + 1].map((edge) => Math.floor((edge * rows) / levels.length));
      const steps = to - from > 1 ? `steps ${from} to ${to - 1}` : `step ${from}`;
      say(event, steps, `weight ${about(levels[cell])}`);
    };
    canvas.addEventListener("pointermove", read);
    canvas.addEventListener("pointerdown", read);
    canvas.addEventListener("pointerleave", hush);
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
      rows.sort((a, b) => (Number(a.dataset[key]) - Number(b.dataset[key])) * (rises ? 1 : -1));
      body.append(...rows);
    });
  }
  table.querySelector('th[data-sort="rank"]').setAttribute("aria-sort", "ascending");

  const map = content.map;
  const canvas = document.getElementById("map");
  const levels = [...map.level].map((letter) => alphabet.indexOf(letter));
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
        pen.fillStyle = css(palette[levels[index]]);
        pen.fill();
      } else {
        pen.globalAlpha = 0.55;
        pen.strokeStyle = outline;
        pen.lineWidth = 0.9;
        pen.stroke();
      }
    }
    pen.globalAlpha = 1;
    if (marked !== undefined) {
      const [x, y] = place(marked);
      pen.beginPath();
      pen.arc(x, y, 6, 0, 7);
      pen.strokeStyle = outline;
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
    say(event, `${whose}, episode ${map.episode[index]}, step ${map.step[index]}`, `weight ${about(levels[index])}`);
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
  document.getElementById("low").textContent = shown(10 ** low);
  document.getElementById("middle").textContent = shown(10 ** threshold);
  document.getElementById("high").textContent = shown(10 ** high);

  function drawAll() {
    readColours();
    drawMap();
    strips.forEach(drawStrip);
  }
  drawAll();
  window.addEventListener("resize", () => drawMap());
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
})();
