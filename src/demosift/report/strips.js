// Strips of weights and the words that follow the pointer, on every page that has them.
const strips = (() => {
  const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  const middle = 30;

  // The scale is log10 of the weights at both ends of the colours and in their middle.
  const weightOf = (level, { low, middle: threshold, high }) =>
    10 ** (level < middle ? low + (level / middle) * (threshold - low) : threshold + (level / middle - 1) * (high - threshold));
  const shown = (value) => (value >= 0.001 && value < 10000 ? String(Number(value.toPrecision(2))) : value.toExponential(0));
  const about = (level, scale) =>
    (level === 0 ? "at most " : level === 2 * middle ? "at least " : "about ") + shown(weightOf(level, scale));
  const levelsOf = (text) => [...text].map((letter) => alphabet.indexOf(letter));

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

  const drawn = [...document.querySelectorAll("canvas.cells")].map((canvas) => {
    const { low, middle: threshold, high } = canvas.closest("[data-low]").dataset;
    return {
      canvas,
      rows: Number(canvas.dataset.rows),
      levels: levelsOf(canvas.dataset.cells),
      scale: { low: Number(low), middle: Number(threshold), high: Number(high) },
    };
  });
  function drawStrip({ canvas, levels }) {
    // A pixel for each cell; the style sheet stretches them.
    [canvas.width, canvas.height] = [levels.length, 1];
    const pen = canvas.getContext("2d");
    const image = pen.createImageData(levels.length, 1);
    levels.forEach((level, index) => image.data.set([...palette[level], 255], 4 * index));
    pen.putImageData(image, 0, 0);
  }
  for (const { canvas, levels, rows, scale } of drawn) {
    const read = (event) => {
      const box = canvas.getBoundingClientRect();
      const cell = Math.min(levels.length - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * levels.length)));
      const [from, to] = [cell, cell + 1].map((edge) => Math.floor((edge * rows) / levels.length));
      const steps = to - from > 1 ? `steps ${from} to ${to - 1}` : `step ${from}`;
      say(event, steps, `weight ${about(levels[cell], scale)}`);
    };
    canvas.addEventListener("pointermove", read);
    canvas.addEventListener("pointerdown", read);
    canvas.addEventListener("pointerleave", hush);
  }

  function drawAll() {
    readColours();
    drawn.forEach(drawStrip);
  }
  drawAll();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  return { about, shown, levelsOf, say, hush, outline: () => outline, colour: (level) => css(palette[level]) };
})();
