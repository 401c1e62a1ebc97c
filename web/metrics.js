// The Prometheus text format, as far as this page needs it. Pure.

/// A list of {name, labels, value}.
export function parse(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/.exec(line);
    if (line.startsWith("#") || found === null) continue;
    const labels = {};
    for (const [, key, value] of (found[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[key] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
    }
    samples.push({ name: found[1], labels, value: Number(found[3].replace("Inf", "Infinity")) });
  }
  return samples;
}

/// The sum over all series of a name whose labels are those of `labels`; null where there is none.
export function sum(samples, name, labels = {}) {
  const of_name = samples.filter((s) => s.name === name && Object.entries(labels).every(([k, v]) => s.labels[k] === v));
  return of_name.length === 0 ? null : of_name.reduce((total, s) => total + s.value, 0);
}

/// {label's value: sum}.
export function by(samples, name, label) {
  const groups = {};
  for (const s of samples) {
    if (s.name === name && s.labels[label] !== undefined) groups[s.labels[label]] = (groups[s.labels[label]] ?? 0) + s.value;
  }
  return groups;
}
