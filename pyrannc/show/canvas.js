// The timeline and the memory over time, drawn on a canvas: what is in view, and nothing twice in one column.
"use strict";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The first index whose item ends after `time`. */
function firstAfter(list, time, endOf) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (endOf(list[middle]) > time) high = middle; else low = middle + 1;
  }
  return low;
}

/** A span of time that several pictures share; they redraw when it changes. */
class Span {
  constructor(end) { this.all = Math.max(end, 1); this.begin = 0; this.end = this.all; this.pictures = []; }
  set(begin, end) {
    const least = Math.min(this.all, Math.max(this.all / 1e6, 10));
    const width = Math.min(this.all, Math.max(least, end - begin));
    this.begin = Math.min(Math.max(0, begin), this.all - width);
    this.end = this.begin + width;
    this.draw();
  }
  zoom(factor, around = (this.begin + this.end) / 2) { this.set(around - (around - this.begin) / factor, around + (this.end - around) / factor); }
  move(share) { const by = share * (this.end - this.begin); this.set(this.begin + by, this.end + by); }
  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; for (const picture of this.pictures) picture.draw(); });
  }
}

/** Moves and zooms `span` by mouse, finger and keyboard on `canvas`. */
function steer(canvas, span, margin, tip) {
  const timeAt = (x) => span.begin + (x - margin) / Math.max(1, canvas.clientWidth - margin) * (span.end - span.begin);
  canvas.tabIndex = 0;
  canvas.addEventListener("keydown", (event) => {
    const done = { "+": () => span.zoom(1.5), "=": () => span.zoom(1.5), "-": () => span.zoom(1 / 1.5), "0": () => span.set(0, span.all),
      ArrowLeft: () => span.move(-0.15), ArrowRight: () => span.move(0.15), Home: () => span.move(-1e9), End: () => span.move(1e9) }[event.key];
    if (done) { done(); event.preventDefault(); }
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return; // the page scrolls
    if (event.ctrlKey || event.metaKey) span.zoom(event.deltaY < 0 ? 1.25 : 0.8, timeAt(event.offsetX)); else span.move(event.deltaX / 800);
    event.preventDefault();
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => span.zoom(3, timeAt(event.offsetX)));
  let from = null;
  canvas.addEventListener("pointerdown", (event) => { from = { x: event.clientX, begin: span.begin, end: span.end }; });
  window.addEventListener("pointerup", () => { from = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (from && Math.abs(event.clientX - from.x) > 3) {
      const by = (from.x - event.clientX) / Math.max(1, canvas.clientWidth - margin) * (from.end - from.begin);
      span.set(from.begin + by, from.end + by);
    }
    if (tip) tip(event, timeAt(event.offsetX));
  });
  canvas.addEventListener("pointerleave", () => showTip(null));
}

function showTip(event, text) {
  let tip = document.querySelector(".tip");
  if (!tip) { tip = el("div", { class: "tip", role: "status" }); document.body.append(tip); }
  tip.style.display = event && text ? "block" : "none";
  if (!event || !text) return;
  tip.textContent = text;
  tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - 220)}px`;
  tip.style.top = `${event.clientY + 14}px`;
}

function prepared(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.style.height = `${height}px`;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  return [context, width];
}

function axis(context, span, margin, width, y) {
  context.fillStyle = css("--soft");
  const count = Math.max(2, Math.floor((width - margin) / 110));
  for (let i = 0; i <= count; ++i) {
    const x = margin + (width - margin) * i / count;
    context.textAlign = i === count ? "right" : i === 0 ? "left" : "center";
    context.fillText(humanTime(span.begin + (span.end - span.begin) * i / count), x, y);
  }
}

const ROW = 22, TOP = 20;

/** A row for each group of ranks that do the same; a click on its name shows each of them. */
class Timeline {
  constructor(plan, times, span) {
    Object.assign(this, { plan, times, span, open: new Set() });
    this.canvas = el("canvas", { role: "img", "aria-label": "Timeline of one step: forward, backward, communication and waiting of each group of ranks. Keys: plus and minus zoom, arrows move, 0 shows all, Enter unfolds the rows." });
    this.space = el("div");
    this.view = el("div", { class: "view" }, this.canvas, this.space);
    this.view.addEventListener("scroll", () => this.draw());
    this.canvas.addEventListener("click", (event) => {
      const row = this.rowAt(event.offsetY);
      if (event.offsetX < this.margin() && row) this.unfold(row.group);
    });
    this.canvas.addEventListener("keydown", (event) => { if (event.key === "Enter") times.groups.forEach((_, g) => this.unfold(g)); });
    this.layOut();
    span.pictures.push(this);
  }
  margin() { return Math.min(130, Math.max(64, this.canvas.clientWidth * 0.2)); }
  unfold(group) { if (this.open.has(group)) this.open.delete(group); else this.open.add(group); this.layOut(); this.draw(); }
  layOut() {
    this.rows = [];
    const p = this.times.groups.length;
    for (let group = 0; group < p; ++group) {
      const stages = this.plan.stages.map((_, s) => s).filter((s) => s % p === group);
      const ranks = this.plan.stages[group].ranks;
      const open = this.open.has(group);
      this.rows.push({ group, stages, name: `${open ? "▾" : "▸"} stage${stages.length > 1 ? "s" : ""} ${stages.length > 3 ? `${stages[0]} … ${stages[stages.length - 1]}` : stages.join(", ")}` });
      if (open) for (const rank of ranks) this.rows.push({ group, stages, name: `    rank ${rank}` });
    }
    this.height = Math.min(440, TOP + this.rows.length * ROW + 2);
    this.space.style.height = `${Math.max(0, TOP + this.rows.length * ROW + 2 - this.height)}px`;
  }
  rowAt(y) { return y < TOP ? null : this.rows[Math.floor((y - TOP + this.view.scrollTop) / ROW)]; }
  draw() {
    const [context, width] = prepared(this.canvas, this.height);
    const margin = this.margin(), { span, times } = this, scale = (width - margin) / (span.end - span.begin);
    if (!this.steered) { this.steered = true; steer(this.canvas, span, margin, (event, time) => this.tip(event, time)); }
    const first = Math.floor(this.view.scrollTop / ROW), shift = this.view.scrollTop - first * ROW;
    const waiting = css("--wait"), ink = css("--ink"), send = css("--send"), reduce = css("--reduce");
    const saturation = css("--stage-s"), light = css("--stage-l"), back = css("--back-l");
    const at = (time) => margin + (time - span.begin) * scale;
    for (let i = first; i < this.rows.length; ++i) {
      const y = TOP + (i - first) * ROW - shift, row = this.rows[i];
      if (y > this.height) break;
      context.fillStyle = ink;
      context.textAlign = "left";
      context.save();
      context.beginPath(); context.rect(0, y, margin - 4, ROW); context.clip();
      context.fillText(row.name, 2, y + ROW / 2);
      context.restore();
      context.save();
      context.beginPath(); context.rect(margin, Math.max(TOP, y), width - margin, ROW); context.clip();
      context.fillStyle = waiting;
      context.fillRect(margin, y + 2, width - margin, ROW - 4);
      const actions = times.groups[row.group];
      // Not more than one action in half a column: the next one that is seen is found, not gone to.
      for (let a = firstAfter(actions, span.begin, (x) => x.end); a < actions.length && actions[a].begin < span.end;) {
        const { stage, k, forward, begin, end } = actions[a];
        const x = at(begin), w = Math.max(0.5, (end - begin) * scale);
        context.fillStyle = `hsl(${hueOf(stage)} ${saturation} ${forward ? light : back})`;
        context.fillRect(x, y + 3, Math.max(0.5, w - (w > 4 ? 1 : 0)), ROW - 9);
        if (!forward && this.plan.stages[stage].recompute && w > 2) {
          context.fillStyle = `hsl(${hueOf(stage)} ${saturation} ${light} / 0.75)`; // the forward again
          context.fillRect(x, y + 3, this.plan.stages[stage].predicted.forward_ns * scale, (ROW - 9) / 2);
        }
        if (w > 18) {
          context.fillStyle = forward ? ink : "#fff";
          context.textAlign = "center";
          context.fillText(`${k}`, x + w / 2, y + ROW / 2 - 1.5);
        }
        a = Math.max(a + 1, firstAfter(actions, end + 0.25 / scale, (item) => item.end));
      }
      context.fillStyle = send;
      for (const stage of row.stages) {
        const moves = times.moves[stage];
        let drawn = -Infinity;
        for (let j = Math.max(0, firstAfter(moves, span.begin, (item) => item.begin) - 8); j < moves.length && moves[j].begin < span.end;) {
          const x = at(moves[j].begin), end = at(moves[j].end);
          if (end > drawn) { context.fillRect(x, y + ROW - 5, Math.max(0.6, end - x), 3); drawn = end; }
          j = Math.max(j + 1, firstAfter(moves, span.begin + (Math.min(drawn, x + 0.5) - margin) / scale, (item) => item.begin));
        }
      }
      const done = actions.length ? actions[actions.length - 1].end : 0;
      const own = Math.max(...row.stages.map((s) => this.plan.stages[s].predicted.reduce_ns));
      if (own > 0) {
        context.fillStyle = reduce;
        context.fillRect(at(done), y + 3, Math.max(0.5, (Math.min(times.end, done + own) - done) * scale), ROW - 9);
      }
      context.restore();
    }
    context.fillStyle = css("--card");
    context.fillRect(0, 0, width, TOP - 1);
    axis(context, span, margin, width, 9);
  }
  tip(event, time) {
    const row = this.rowAt(event.offsetY);
    if (!row || event.offsetX < this.margin()) return showTip(null);
    const actions = this.times.groups[row.group], found = actions[firstAfter(actions, time, (item) => item.end)];
    const text = found && found.begin <= time
      ? `${found.forward ? "forward" : this.plan.stages[found.stage].recompute ? "recompute and backward" : "backward"} of micro-batch ${found.k}, stage ${found.stage}\n${humanTime(found.begin)} to ${humanTime(found.end)} (${humanTime(found.end - found.begin)})`
      : found ? "waiting" : "after the last backward";
    return showTip(event, text);
  }
}

/** Bytes of each group over time, under the limit. */
class MemoryPicture {
  constructor(plan, times, span) {
    Object.assign(this, { plan, span, lines: memoryOverTime(plan, times), chosen: null });
    this.limit = (plan.notes || {}).memory_limit_bytes;
    this.canvas = el("canvas", { role: "img", "aria-label": "Memory of one rank of each group over one step, against the limit" });
    this.view = el("div", { class: "view" }, this.canvas);
    span.pictures.push(this);
  }
  draw() {
    const height = 190, [context, width] = prepared(this.canvas, height), margin = Math.min(130, Math.max(64, this.canvas.clientWidth * 0.2));
    const { span } = this;
    if (!this.steered) { this.steered = true; steer(this.canvas, span, margin, (event) => this.tip(event)); }
    const top = Math.max(this.limit || 0, ...this.lines.map((line) => line.peak)) * 1.05 || 1;
    const y = (bytes) => height - 6 - bytes / top * (height - 30);
    const scale = (width - margin) / (span.end - span.begin);
    this.yOf = y;
    context.fillStyle = css("--soft");
    context.textAlign = "right";
    for (const share of [0, 0.5, 1]) context.fillText(humanBytes(top / 1.05 * share), margin - 6, y(top / 1.05 * share));
    context.save();
    context.beginPath(); context.rect(margin, 0, width - margin, height); context.clip();
    for (const line of this.lines) {
      const some = this.chosen === null || line.stages.includes(this.chosen);
      context.strokeStyle = `hsl(${hueOf(line.stages[0] || 0)} ${css("--stage-s")} ${css("--back-l")} / ${some ? 1 : 0.15})`;
      context.lineWidth = some && this.chosen !== null ? 2 : 1.2;
      context.beginPath();
      const points = line.points;
      let at = Math.max(0, firstAfter(points, span.begin, (point) => point[0]) - 1);
      let level = at < points.length && points[at][0] <= span.begin ? points[at][1] : line.base;
      context.moveTo(margin, y(level));
      for (; at < points.length && points[at][0] < span.end;) {
        // All points of one column: its lowest and its highest.
        const x = margin + (points[at][0] - span.begin) * scale;
        const until = Math.max(at + 1, firstAfter(points, points[at][0] + 0.5 / scale, (point) => point[0]));
        let low = level, high = level;
        for (let i = at; i < Math.min(until, at + 64); ++i) { low = Math.min(low, points[i][1]); high = Math.max(high, points[i][1]); }
        context.lineTo(x, y(level));
        if (low < level) context.lineTo(x, y(low));
        if (high > level) context.lineTo(x, y(high));
        level = points[until - 1][1];
        context.lineTo(x, y(level));
        at = until;
      }
      context.lineTo(width, y(level));
      context.stroke();
    }
    if (this.limit) {
      context.setLineDash([6, 4]);
      context.strokeStyle = css("--warn");
      context.lineWidth = 1.5;
      context.beginPath(); context.moveTo(margin, y(this.limit)); context.lineTo(width, y(this.limit)); context.stroke();
      context.setLineDash([]);
    }
    context.restore();
    axis(context, span, margin, width, 8);
  }
  tip(event) {
    const near = this.lines.filter((line) => Math.abs(this.yOf(line.peak) - event.offsetY) < 8).slice(0, 6);
    showTip(event, near.map((line) => `stage ${line.stages.join(", ")}: peak ${humanBytes(line.peak)}`).join("\n"));
  }
}
