// Tables of numbers as pictures on a canvas: one hue, darker is more.

function hue(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

/// From the page's ground to its accent, for 0 to 1.
export function scale() {
  const from = rgb(hue("--heat-0"));
  const middle = rgb(hue("--heat-1"));
  const to = rgb(hue("--heat-2"));
  const mix = (a, b, t) => a.map((x, i) => Math.round(x + (b[i] - x) * t));
  return (share) => {
    const t = Math.min(1, Math.max(0, share));
    const [r, g, b] = t < 0.5 ? mix(from, middle, 2 * t) : mix(middle, to, 2 * t - 1);
    return `rgb(${r} ${g} ${b})`;
  };
}

/// Draws `rows` x `columns` cells that fill the canvas.
///   value(r, c)    0 to 1, or null for no cell
///   ring(r, c)     true: outlined in the text's colour
///   gap            pixels between cells
export function draw(canvas, { rows, columns, row_height, value, ring, gap = 1 }) {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = rows * row_height;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const color = scale();
  const ink = hue("--ink");
  const cell = width / columns;
  const space = cell > 5 ? gap : 0;
  for (let r = 0; r < rows; ++r) {
    for (let c = 0; c < columns; ++c) {
      const v = value(r, c);
      if (v === null) continue;
      context.fillStyle = color(v);
      context.beginPath();
      context.roundRect(c * cell, r * row_height, cell - space, row_height - gap, cell > 12 ? 2 : 0);
      context.fill();
    }
  }
  if (ring === undefined) return;
  context.strokeStyle = ink;
  context.lineWidth = 1.5;
  for (let r = 0; r < rows; ++r) {
    for (let c = 0; c < columns; ++c) {
      if (!ring(r, c)) continue;
      context.beginPath();
      context.roundRect(c * cell + 0.75, r * row_height + 0.75, cell - space - 1.5, row_height - gap - 1.5, 1.5);
      context.stroke();
    }
  }
}

/// Calls `say(r, c)` for the cell under the pointer, `say(null)` when it leaves.
export function hover(canvas, shape, say) {
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const { rows, columns } = shape();
    const r = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const c = Math.floor(((event.clientX - box.left) / box.width) * columns);
    if (r >= 0 && r < rows && c >= 0 && c < columns) say(r, c);
  });
  canvas.addEventListener("pointerleave", () => say(null));
}
