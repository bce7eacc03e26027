// The page of a plan, or of two beside each other: reads its data, makes the sections, draws.
"use strict";

const KINDS = [["param_bytes", "parameters"], ["gradient_bytes", "gradients"], ["optimizer_bytes", "optimizer"],
  ["activation_bytes", "activations"], ["buffer_bytes", "buffers"], ["workspace_bytes", "workspace"]];

const MOST_LABELLED = 16; // stages whose numbers a screen has room for

const peakOf = (plan, s) => (plan.step_peak_bytes ? plan.step_peak_bytes[s] : plan.stages[s].predicted ? plan.stages[s].predicted.peak_bytes : 0);
const ranksOf = (plan) => new Set(plan.stages.flatMap((stage) => stage.ranks));
const nameOf = (plan, s) => {
  const { notes, nodes } = plan.stages[s];
  if (notes && notes.modules) return notes.modules;
  return nodes.length < 3 ? nodes.join(", ") : `${nodes[0]} ... ${nodes[nodes.length - 1]} (${nodes.length} nodes)`;
};

function section(title, ...content) { return el("section", { "aria-label": title }, el("h2", {}, title), ...content); }

function numbers(plan) {
  const notes = plan.notes || {}, parts = notes.parts;
  const total = parts ? parts.compute_ns + parts.bubble_ns + parts.transfer_ns + parts.reduction_ns : 0;
  const most = Math.max(0, ...plan.stages.map((_, s) => peakOf(plan, s)));
  const rows = plan.notes && plan.notes.global_batch;
  const items = [
    ["iteration", plan.iteration_ns ? humanTime(plan.iteration_ns) : "-"],
    plan.notes && plan.notes.step_ns ? ["step with optimizer", humanTime(plan.notes.step_ns)] : null,
    ["stages", `${plan.stages.length}`],
    ["ranks", notes.hosts ? `${ranksOf(plan).size} of ${(notes.host_of_rank || []).length || notes.hosts * notes.devices_per_host}` : `${ranksOf(plan).size}`],
    ["micro-batches", `${plan.micro_batches}`],
    rows ? ["rows of a batch", `${rows}`] : null,
    rows && plan.iteration_ns ? ["rows per second", (rows / ((notes.step_ns || plan.iteration_ns) / 1e9)).toPrecision(4)] : null,
    ["schedule", plan.schedule + (plan.schedule === "interleaved" ? ` (x${plan.interleave})` : "")],
    parts ? ["bubble", percent(parts.bubble_ns, total)] : null,
    most ? ["fullest rank", humanBytes(most)] : null,
    notes.memory_limit_bytes ? ["of the limit", percent(most, notes.memory_limit_bytes)] : null,
    notes.gap ? ["of the bound", `${notes.gap.toFixed(3)} x`] : null,
  ].filter(Boolean);
  return el("section", { class: "numbers", "aria-label": "In numbers" }, items.map(([name, value]) => el("div", { "data-number": name }, el("b", {}, value), name)));
}

/** The model as a strip of modules; `choose` is told what is clicked. */
function strip(plan, graph, units, choose) {
  const notes = plan.notes || {}, limit = notes.memory_limit_bytes;
  const busy = plan.stages.map((stage) => (stage.predicted ? stage.predicted.forward_ns + stage.predicted.backward_ns : 0));
  const slowest = Math.max(...busy, 1), fullest = limit || Math.max(...plan.stages.map((_, s) => peakOf(plan, s)), 1);
  const total = sum(plan.stages.map((stage) => stage.nodes.length)) || 1;
  // Where a stage has no room for its numbers, they stand in what a pointer or a click shows.
  const many = plan.stages.length > MOST_LABELLED, every = Math.ceil(plan.stages.length / MOST_LABELLED);
  const labelled = (text) => (many ? null : el("small", {}, text));
  const stages = plan.stages.map((stage, s) => {
    const buttons = units[s].map((unit) => {
      const share = graph ? unit.ns / Math.max(1, sum(units[s].map((each) => each.ns))) : unit.nodes.length / Math.max(1, stage.nodes.length);
      const button = el("button", { class: "unit", title: unit.name, "aria-label": `${unit.name}, stage ${s}`, style: { "flex-grow": `${Math.max(share, 0.002)}` },
        onclick: () => choose(s, unit, button) }, share > 0.5 && plan.stages.length < 12 ? unit.name.split(".").slice(-2).join(".") : "");
      return button;
    });
    const peak = peakOf(plan, s);
    return el("div", { class: "stage", style: { ...tinted(s), "flex-grow": `${Math.max(stage.nodes.length / total, many ? 0.2 / plan.stages.length : 0.02)}` } },
      el("button", { onclick: () => choose(s, null, null), "aria-label": `stage ${s}`, title: `stage ${s}: ${nameOf(plan, s)}` }, s % every ? "" : `${s}`),
      el("div", { class: "units" }, buttons),
      el("div", { class: "gauge", title: `time: ${humanTime(busy[s])} of a micro-batch, ${percent(busy[s], slowest)} of the slowest stage` }, el("i", { style: { width: `${100 * busy[s] / slowest}%` } })),
      labelled(stage.predicted ? humanTime(busy[s]) : "-"),
      el("div", { class: "gauge", title: `memory: ${humanBytes(peak)}, ${percent(peak, fullest)} of ${limit ? "the limit" : "the fullest"}` }, el("i", { class: limit && peak > limit ? "full" : "", style: { width: `${Math.min(100, 100 * peak / fullest)}%` } })),
      labelled(stage.predicted ? humanBytes(peak) : "-"));
  });
  return section("The model, by stages",
    el("p", { class: "soft" }, "Modules in the order in which they run. Beneath each stage the time of one micro-batch (forward and backward) beside the slowest stage's, and the memory of a rank beside the limit. A module can be chosen."),
    el("div", { class: "scroll" }, el("div", { class: many ? "strip many" : "strip" }, stages)));
}

/** What is known of a module or of a whole stage. */
function detail(plan, graph, s, unit) {
  const stage = plan.stages[s], predicted = stage.predicted, rows = predicted ? predicted.rows : 1;
  const items = [["stage", `${s}, on ranks ${ranges(stage.ranks)}${stage.recompute ? ", recomputes" : ""}`]];
  const nodes = unit ? unit.nodes : stage.nodes;
  if (!unit) items.push(["modules", nameOf(plan, s)]);
  items.push(["operators", `${nodes.length} of the stage's ${stage.nodes.length}`]);
  if (!unit && predicted) {
    items.push(["forward", humanTime(predicted.forward_ns)], ["backward", humanTime(predicted.backward_ns)], ["reduction", humanTime(predicted.reduce_ns)]);
    for (const [key, name] of KINDS) items.push([name, humanBytes(predicted[key])]);
    items.push(["peak", humanBytes(peakOf(plan, s))]);
  }
  const content = [];
  if (graph) {
    const known = nodes.map((name) => graph.byName.get(name)).filter(Boolean), params = new Set(known.flatMap((node) => node.params || []));
    const cost = (key) => sum(known.map((node) => costAt(node[key], graph.rows, rows)));
    if (unit) items.push(["forward", humanTime(cost("forward_ns"))], ["backward", humanTime(cost("backward_ns"))], ["kept for backward", humanBytes(cost("saved_bytes"))]);
    items.push(["parameters", `${params.size} of ${humanBytes(sum([...params].map((id) => graph.paramBytes.get(id) || 0)))}`]);
    const most = 200;
    content.push(el("p", { class: "soft" }, `Times and bytes at ${rows} row${rows === 1 ? "" : "s"}, the largest share of a micro-batch.`),
      table(["operator", "kind", ["forward", "n"], ["backward", "n"], ["kept", "n"], "parameters", "line"],
        known.slice(0, most).map((node) => [el("span", {}, node.name), node.op, humanTime(costAt(node.forward_ns, graph.rows, rows)), humanTime(costAt(node.backward_ns, graph.rows, rows)),
          humanBytes(costAt(node.saved_bytes, graph.rows, rows)), (node.params || []).join(", "), node.source || ""])));
    if (known.length > most) content.push(el("p", { class: "soft" }, `and ${known.length - most} more`));
  } else {
    content.push(el("p", {}, nodes.slice(0, 400).join(", ") + (nodes.length > 400 ? ` and ${nodes.length - 400} more` : "")),
      el("p", { class: "soft" }, "With --graph this page also shows the parameters, times, bytes and source lines of these operators."));
  }
  return el("section", { class: "detail", "aria-live": "polite" }, el("h2", {}, unit ? unit.name : `stage ${s}`),
    el("dl", {}, items.flatMap(([name, value]) => [el("dt", {}, name), el("dd", { "data-detail": name }, value)])), content);
}

function stageTable(plan) {
  const limit = (plan.notes || {}).memory_limit_bytes;
  const rows = plan.stages.map((stage, s) => {
    const predicted = stage.predicted, time = (key) => (predicted ? humanTime(predicted[key]) : "-"), notes = stage.notes || {};
    return [el("span", {}, el("i", { class: "dot", style: tinted(s) }), `${s}`), el("span", {}, nameOf(plan, s)), ranges(stage.ranks), predicted ? `${predicted.rows}` : "-",
      time("forward_ns"), time("backward_ns"), time("reduce_ns"), stage.recompute ? "yes" : "no", notes.out_bytes === undefined ? "-" : humanBytes(notes.out_bytes),
      predicted ? humanBytes(peakOf(plan, s)) : "-", limit && predicted ? percent(peakOf(plan, s), limit) : "-"];
  });
  const view = table(["stage", "modules", "ranks", ["rows", "n"], ["forward", "n"], ["backward", "n"], ["reduction", "n"], "recompute", ["gives", "n"], ["peak memory", "n"], ["of limit", "n"]], rows);
  for (const cell of view.querySelectorAll("td:nth-child(2)")) cell.className = "name";
  return section("Stages", view, groupTable(plan));
}

/** Stages whose layers groups of ranks compute together; nothing where there are none. */
function groupTable(plan) {
  const rows = plan.stages.flatMap((stage, s) => {
    if (!stage.mesh) return [];
    const group = (stage.notes || {}).group;
    return [[`${s}`, stage.mesh.join(" x "), group ? percent(group.cut_bytes, group.parameter_bytes || 1) : "-", group ? humanBytes(group.collective_bytes) : "-",
      group && group.collective_ns ? humanTime(group.collective_ns) : "-", Object.keys(stage.factors || {}).join(", ") || "none"]];
  });
  if (rows.length === 0) return [];
  return [el("p", { class: "soft" }, "Layers that groups of ranks compute together; a rank sends for one micro-batch:"),
    table(["stage", "mesh", ["parameters cut", "n"], ["collectives send", "n"], ["take", "n"], "factors"], rows)];
}

function devices(plan, choose) {
  const notes = plan.notes || {}, stagesOf = new Map();
  plan.stages.forEach((stage, s) => stage.ranks.forEach((rank) => stagesOf.set(rank, [...(stagesOf.get(rank) || []), s])));
  const perHost = notes.devices_per_host || stagesOf.size, hosts = notes.hosts || 1;
  const boxes = [], listed = notes.host_of_rank || [];
  const hostOf = (rank) => listed.length ? listed[rank] : Math.floor(rank / perHost);
  const all = [...Array(listed.length || hosts * perHost).keys()];
  for (let host = 0; host < hosts; ++host) {
    const cells = [];
    for (const rank of all.filter((each) => hostOf(each) === host)) {
      const held = stagesOf.get(rank);
      cells.push(held
        ? el("i", { style: tinted(held[0]), title: `rank ${rank}: stage ${held.join(", ")}, ${humanBytes(peakOf(plan, held[0]))}`, onclick: () => choose(held[0], null, null) }, `${held[0]}`)
        : el("i", { class: "idle", title: `rank ${rank}: idle` }));
    }
    boxes.push(el("div", { class: "host" }, `host ${host}`, el("div", {}, cells)));
  }
  const rows = (notes.transfers || []).map((each) => {
    const ends = [...plan.stages[each.from].ranks.map(hostOf), ...plan.stages[each.to].ranks.map(hostOf)];
    return [`${each.from} → ${each.to}`, humanBytes(each.bytes), humanBytes(each.bytes * plan.micro_batches * (each.grad === false ? 1 : 2)), humanTime(each.forward_ns), each.grad === false ? "-" : humanTime(each.backward_ns),
      new Set(ends).size > 1 ? "between hosts" : "inside a host"];
  });
  return section("Hosts and devices", el("p", { class: "soft" }, "Each square is a device, with the stage that it holds."), el("div", { class: "hosts" }, boxes),
    rows.length ? el("h2", { style: { "margin-top": "12px" } }, "Links between stages") : null,
    rows.length ? table(["stages", ["bytes of a micro-batch", "n"], ["bytes of a step", "n"], ["forward", "n"], ["backward", "n"], "link"], rows) : el("p", { class: "soft" }, "Transfers between stages are not noted in this plan."));
}

function pictures(plan, times) {
  if (times.error) return [section("Timeline of a step", el("p", { class: "soft" }, times.error))];
  const span = new Span(times.end), timeline = new Timeline(plan, times, span), memory = new MemoryPicture(plan, times, span);
  const button = (text, label, action) => el("button", { onclick: action, "aria-label": label, title: label }, text);
  const key = (color, text) => el("span", {}, el("i", { class: "key", style: { background: color } }), text);
  const tools = el("div", { class: "tools" }, button("+", "zoom in", () => span.zoom(1.6)), button("−", "zoom out", () => span.zoom(1 / 1.6)), button("←", "earlier", () => span.move(-0.3)), button("→", "later", () => span.move(0.3)),
    button("all", "show all", () => span.set(0, span.all)), key("hsl(210 58% 66%)", "forward (recompute: on top of a backward)"), key("hsl(210 58% 40%)", "backward"), key("var(--send)", "messages"), key("var(--reduce)", "own gradient sums, if nothing hid them"), key("var(--wait)", "waiting"));
  new ResizeObserver(() => span.draw()).observe(timeline.view);
  redraw.push(() => span.draw());
  const note = times.known ? "" : " Transfers are not known, and take no time here.";
  return [section("Timeline of a step", el("p", { class: "soft" }, `A row for each group of ranks that do the same; its name unfolds it. Drag, double-click, Ctrl and wheel, or the keys + − ← → 0 move and zoom.${note}`), tools, timeline.view),
    section("Memory over time", el("p", { class: "soft" }, "A rank of each stage: its peak, less what the activations of fewer micro-batches take. The dashed line is the limit."), memory.view)];
}

function bounds(plan) {
  const notes = plan.notes || {}, parts = notes.parts, content = [];
  if (parts) {
    const total = parts.compute_ns + parts.bubble_ns + parts.transfer_ns + parts.reduction_ns;
    const list = [["compute of the busiest ranks", parts.compute_ns, "hsl(210 58% 52%)"], ["bubble: their waiting, were transfers free", parts.bubble_ns, "var(--soft)"], ["waiting for transfers", parts.transfer_ns, "var(--send)"], ["gradient reduction after the last backward", parts.reduction_ns, "var(--reduce)"]];
    const most = list.reduce((a, b) => (b[1] > a[1] ? b : a));
    content.push(el("p", {}, `Stage ${parts.slowest_stage} is the slowest. The largest part is ${most[0]}: ${percent(most[1], total)}.`),
      el("div", { class: "parts" }, list.map(([name, ns, color]) => el("i", { title: `${name}: ${humanTime(ns)}`, style: { background: color, "flex-grow": `${ns / total}`, "flex-basis": "0" } }))),
      table(["part", ["time", "n"], ["share", "n"]], list.map(([name, ns, color]) => [el("span", {}, el("i", { class: "key", style: { background: color } }), name), humanTime(ns), percent(ns, total)])));
  }
  if (notes.bound_ns) content.push(el("p", {}, `No plan of this request is faster than ${humanTime(notes.bound_ns)}: this one takes ${notes.gap.toFixed(3)} times as long.`));
  if (notes.search) content.push(el("p", { class: "soft" }, `The search ${notes.search === "cut" ? "was cut" : "is complete"}: ${notes.examined ?? "?"} plans simulated, ${notes.nodes ?? "?"} nodes in ${notes.blocks ?? "?"} blocks.`));
  if (!content.length) content.push(el("p", { class: "soft" }, "This plan does not say it; rannc evaluate does."));
  return section("What bounds the step", content);
}

function alternatives(plan) {
  const others = (plan.notes || {}).alternatives || [];
  if (!others.length) return null;
  return section("The best plan of each other kind, and why it lost", table(["best plan with", "schedule", ["micro-batches", "n"], "replicas", ["iteration", "n"], ["peak", "n"], "why it lost"],
    others.map((other) => [other.kind, other.schedule, `${other.micro_batches}`, folded(other.replicas), humanTime(other.iteration_ns), humanBytes(other.peak_bytes), other.why])));
}

function measured(plan, record) {
  if (!record) return null;
  const off = (predicted, found) => (found ? `${(100 * (predicted - found) / found).toFixed(1)} %` : "-");
  const predictedNs = record.predicted_step_ns || plan.notes && plan.notes.step_ns || plan.iteration_ns;
  const rows = [["time of a step", humanTime(predictedNs), humanTime(record.step_ns), off(predictedNs, record.step_ns)]];
  (record.stages || []).forEach((stage, s) => { if (plan.stages[s]) rows.push([`memory of stage ${s}`, humanBytes(peakOf(plan, s)), humanBytes(stage.peak_bytes), off(peakOf(plan, s), stage.peak_bytes)]); });
  const kinds = ["compute", "send", "receive", "reduce", "idle", "rest"];
  return section("Predicted and measured", table(["", ["predicted", "n"], ["measured", "n"], ["off by", "n"]], rows),
    (record.ranks || []).length ? table([["rank", "n"], ...kinds.map((kind) => [kind, "n"])], record.ranks.slice(0, 64).map((rank, r) => [`${r}`, ...kinds.map((kind) => percent(rank[kind] || 0, 1))])) : null);
}

/** A plan that does not fit: what, and by how much. */
function infeasible(plan) {
  const units = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };
  const found = [...(plan.reason || "").matchAll(/([\d.]+) (B|KiB|MiB|GiB|TiB)\b/g)].map((match) => [match[0], Number(match[1]) * units[match[2]]]);
  const content = [el("p", { class: "warn" }, plan.reason || "no reason is given")];
  if (found.length >= 2) {
    const [[needText, need], [haveText, have]] = found, most = Math.max(need, have, 1);
    const bar = (name, text, bytes, full) => el("div", { style: { "--hue": "210" } }, `${name} ${text}`, el("div", { class: "gauge", style: { height: "14px" } }, el("i", { class: full ? "full" : "", style: { width: `${100 * bytes / most}%` } })));
    content.push(bar("needed", needText, need, true), bar("there is", haveText, have, false));
    if (need > have) content.push(el("p", {}, `${humanBytes(need - have)} too much: ${(need / Math.max(have, 1)).toFixed(2)} times what there is.`));
  }
  return section("No plan fits", content);
}

const redraw = [];

function showPlan(data, title) {
  const { plan, record } = data, root = el("div", { class: "plan" });
  if (title) root.append(el("h2", { class: "soft" }, data.name));
  if (plan.feasible === false) { root.append(infeasible(plan)); return root; }
  const graph = data.graph, units = unitsOf(plan, graph), times = computeTimes(plan), place = el("div");
  let chosen = null;
  const choose = (s, unit, button) => {
    if (chosen) chosen.classList.remove("chosen");
    chosen = button;
    if (button) button.classList.add("chosen");
    place.replaceChildren(detail(plan, graph, s, unit));
  };
  root.append(...[numbers(plan), strip(plan, graph, units, choose), place, measured(plan, record), ...pictures(plan, times), bounds(plan), stageTable(plan), devices(plan, choose), alternatives(plan)].filter(Boolean));
  return root;
}

/** What two plans differ in: numbers, and where operators have moved. */
function difference(a, b) {
  const rows = [], one = (name, of) => { const [x, y] = [of(a), of(b)]; rows.push([name, x, y, x === y ? "" : "differs"]); };
  one("iteration", (plan) => (plan.iteration_ns ? humanTime(plan.iteration_ns) : "-"));
  one("stages", (plan) => `${plan.stages.length}`);
  one("ranks", (plan) => `${ranksOf(plan).size}`);
  one("replicas", (plan) => folded(plan.stages.map((stage) => stage.ranks.length)));
  one("schedule", (plan) => plan.schedule);
  one("micro-batches", (plan) => `${plan.micro_batches}`);
  one("recompute", (plan) => `${plan.stages.filter((stage) => stage.recompute).length} of ${plan.stages.length} stages`);
  one("fullest rank", (plan) => humanBytes(Math.max(0, ...plan.stages.map((_, s) => peakOf(plan, s)))));
  const place = new Map(a.stages.flatMap((stage, s) => stage.nodes.map((name) => [name, s])));
  let moved = 0, missing = 0;
  b.stages.forEach((stage, s) => stage.nodes.forEach((name) => { if (!place.has(name)) ++missing; else if (place.get(name) !== s) ++moved; }));
  rows.push(["operators on a stage of another number", "", `${moved}`, moved ? "differs" : ""]);
  if (missing) rows.push(["operators that the first plan has not", "", `${missing}`, "differs"]);
  return section("What differs", table(["", "first", "second", ""], rows));
}

async function inflated(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

async function main() {
  const data = JSON.parse(document.getElementById("data").textContent);
  for (const each of data.plans) {
    if (each.packed) each.plan = await inflated(each.packed);
    each.plan.notes = each.plan.notes || {};
    for (const key of ["step_peak_bytes"]) each.plan[key] = each.plan.notes[key] || each.plan[key];
    each.graph = each.packed_graph ? indexed(await inflated(each.packed_graph)) : null;
  }
  const theme = el("button", { "aria-label": "light or dark" }, "◐");
  const paint = (dark) => { document.documentElement.classList.toggle("dark", dark); for (const draw of redraw) draw(); };
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  theme.addEventListener("click", () => paint(!document.documentElement.classList.contains("dark")));
  system.addEventListener("change", (event) => paint(event.matches));
  document.documentElement.classList.toggle("dark", system.matches);
  const two = data.plans.length > 1;
  const root = el("main", { class: two ? "two" : "" });
  document.body.append(el("header", {}, el("h1", {}, data.title), theme), root);
  if (two && data.plans.every((each) => each.plan.feasible !== false)) root.append(el("div", { style: { "grid-column": "1 / -1" } }, difference(data.plans[0].plan, data.plans[1].plan)));
  for (const each of data.plans) root.append(showPlan(each, two));
  window.addEventListener("beforeprint", () => { for (const draw of redraw) draw(); });
  document.documentElement.dataset.ready = "true";
}

main().catch((error) => { document.body.append(el("p", { class: "warn" }, `This page cannot be drawn: ${error.message}`)); throw error; });
