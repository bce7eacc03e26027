// Which modules a stage holds, from the names of operators, or from the graph where the page has it.
"use strict";

const parentOf = (path) => (path.includes(".") ? path.slice(0, path.lastIndexOf(".")) : "");
const isNumbered = (path) => /^\d+$/.test(path.slice(path.lastIndexOf(".") + 1));

function prefixesOf(path) {
  const prefixes = [];
  for (let over = path; over; over = parentOf(over)) prefixes.unshift(over);
  return prefixes;
}

/** The module of each operator: as the graph says, or the operator's name without its last part. */
function moduleOf(name, graph) {
  const node = graph && graph.byName.get(name);
  if (node) return graph.saysModules ? node.module || "" : node.name;
  return parentOf(name);
}

/** path -> the module that is shown for it, by the rule of src/plan/show/module_names.cpp. */
function unitFinder(paths) {
  const all = new Set(), numbered = new Map(), holders = new Set([""]);
  for (const path of new Set(paths)) for (const prefix of prefixesOf(path)) all.add(prefix);
  for (const path of all) if (isNumbered(path)) numbered.set(parentOf(path), (numbered.get(parentOf(path)) || 0) + 1);
  for (const path of new Set(paths)) {
    let most = 0, longest = "";
    for (const prefix of prefixesOf(path)) {
      const count = numbered.get(parentOf(prefix)) || 0;
      if (isNumbered(prefix) && count > most) { most = count; longest = prefix; }
    }
    for (let over = longest; over;) { over = parentOf(over); holders.add(over); }
  }
  const known = new Map();
  return (path) => {
    if (!known.has(path)) known.set(path, prefixesOf(path).find((prefix) => !holders.has(prefix)) ?? path);
    return known.get(path);
  };
}

function costAt(values, points, rows) {
  if (!values || !values.length) return 0;
  if (points.length === 1) return values[0] * rows / points[0];
  let i = 0;
  while (i + 2 < points.length && rows > points[i + 1]) ++i;
  const share = (rows - points[i]) / (points[i + 1] - points[i]);
  return Math.max(0, values[i] + share * (values[i + 1] - values[i]));
}

/** The graph with what is looked up in it. */
function indexed(graph) {
  if (!graph) return null;
  graph.byName = new Map(graph.nodes.map((node) => [node.name, node]));
  graph.saysModules = graph.nodes.some((node) => node.module);
  graph.paramBytes = new Map((graph.params || []).map((param) => [param.id, param.bytes]));
  return graph;
}

/** For each stage its modules in order: {name, nodes, ns}. Operators between them go to the one before. */
function unitsOf(plan, graph) {
  const unit = unitFinder(plan.stages.flatMap((stage) => stage.nodes.map((name) => moduleOf(name, graph))));
  return plan.stages.map((stage) => {
    const units = new Map(), rows = stage.predicted ? stage.predicted.rows : 1;
    let last = null;
    for (const name of stage.nodes) {
      const path = moduleOf(name, graph), found = unit(path);
      const key = found === "" && last !== null ? last : found || "(model)";
      if (!units.has(key)) units.set(key, { name: key, nodes: [], ns: 0 });
      const each = units.get(key), node = graph && graph.byName.get(name);
      each.nodes.push(name);
      if (node) each.ns += costAt(node.forward_ns, graph.rows, rows) + costAt(node.backward_ns, graph.rows, rows);
      last = key;
    }
    return [...units.values()];
  });
}
