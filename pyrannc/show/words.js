// Numbers as `rannc show` writes them, and elements whose texts are never read as markup.
"use strict";

function humanBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (Math.abs(bytes) >= 1024 && unit + 1 < units.length) { bytes /= 1024; ++unit; }
  return unit === 0 ? `${bytes.toFixed(0)} B` : `${bytes.toFixed(1)} ${units[unit]}`;
}

function humanTime(ns) {
  if (ns >= 1e9) return `${(ns / 1e9).toFixed(2)} s`;
  if (ns >= 1e6) return `${(ns / 1e6).toFixed(1)} ms`;
  if (ns >= 1e3) return `${(ns / 1e3).toFixed(0)} us`;
  return `${ns.toFixed(0)} ns`;
}

const percent = (part, whole) => (whole > 0 ? `${(100 * part / whole).toPrecision(3)} %` : "-");
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

/** "0-3, 6": ascending numbers, runs folded. */
function ranges(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b);
  const texts = [];
  for (let first = 0; first < sorted.length;) {
    let last = first;
    while (last + 1 < sorted.length && sorted[last + 1] === sorted[last] + 1) ++last;
    texts.push(last > first ? `${sorted[first]}-${sorted[last]}` : `${sorted[first]}`);
    first = last + 1;
  }
  return texts.join(", ");
}

/** "[8, 4 x 2]": equal neighbours counted. */
function folded(numbers) {
  const texts = [];
  for (let first = 0; first < numbers.length;) {
    let next = first;
    while (next < numbers.length && numbers[next] === numbers[first]) ++next;
    texts.push(next - first > 1 ? `${numbers[first]} x ${next - first}` : `${numbers[first]}`);
    first = next;
  }
  return `[${texts.join(", ")}]`;
}

/** An element; children are elements or texts. */
function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Columns: texts, or [text, "n"] for numbers; rows: lists of cells. */
function table(columns, rows) {
  const kinds = columns.map((column) => (Array.isArray(column) ? column[1] : ""));
  const head = columns.map((column, i) => el("th", { class: kinds[i], scope: "col" }, Array.isArray(column) ? column[0] : column));
  const long = rows.length > 14, kind = `scroll${long ? " long" : ""}${columns.length > 5 ? " wide" : ""}`;
  return el("div", { class: kind, tabindex: long ? "0" : undefined }, el("table", {}, el("thead", {}, el("tr", {}, head)),
    el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell, i) => el("td", { class: kinds[i] }, cell)))))));
}

const hueOf = (stage) => (stage * 137.508 + 210) % 360;
const tinted = (stage) => ({ "--hue": hueOf(stage).toFixed(1) });
