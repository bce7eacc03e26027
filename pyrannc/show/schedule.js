// When each group of ranks computes what: section 5 of docs/planner-files.md, from the plan alone.
"use strict";

const MOST_TURNS = 1 << 20; // micro-batches times stages that are worked out

function groupsOf(plan) {
  return plan.schedule === "interleaved" ? plan.stages.length / plan.interleave : plan.stages.length;
}

/** [stage, micro-batch, is it a forward] of one group, in its order. */
function computeOrder(plan, group) {
  const S = plan.stages.length, m = plan.micro_batches, order = [];
  const forward = (s, k) => order.push([s, k, true]), backward = (s, k) => order.push([s, k, false]);
  if (plan.schedule === "gpipe") {
    for (let k = 0; k < m; ++k) forward(group, k);
    for (let k = 0; k < m; ++k) backward(group, k);
  } else if (plan.schedule === "1f1b") {
    const w = Math.min(m, S - 1 - group);
    for (let k = 0; k < w; ++k) forward(group, k);
    for (let k = 0; k < m - w; ++k) { forward(group, w + k); backward(group, k); }
    for (let k = m - w; k < m; ++k) backward(group, k);
  } else {
    const v = plan.interleave, p = S / v, all = v * m, div = (a, b) => Math.floor(a / b);
    const turn = (n, chunk) => [chunk * p + group, div(n, p * v) * p + n % p];
    const f = (n) => forward(...turn(n, div(n, p) % v)), b = (n) => backward(...turn(n, v - 1 - div(n, p) % v));
    const w = Math.min(all, 2 * (p - 1 - group) + (v - 1) * p);
    for (let n = 0; n < w; ++n) f(n);
    for (let n = 0; n < all - w; ++n) { f(w + n); b(n); }
    for (let n = all - w; n < all; ++n) b(n);
  }
  return order;
}

/** For each group its actions {stage, k, forward, begin, end}; and the transfers {from, to, k, begin, end, back}. */
function computeTimes(plan) {
  const stages = plan.stages, m = plan.micro_batches, groups = groupsOf(plan);
  if (stages.some((stage) => !stage.predicted)) return { error: "The plan has no predicted times; rannc evaluate computes them." };
  if (m * stages.length > MOST_TURNS) return { error: `${m} micro-batches in ${stages.length} stages are too many to draw.` };
  if (!Number.isInteger(groups)) return { error: "The stages do not go with the schedule." };
  const notes = plan.notes || {};
  const transfers = notes.transfers || stages.slice(1).map((_, s) => ({ from: s, to: s + 1, forward_ns: 0, backward_ns: 0, bytes: 0, grad: true }));
  const into = stages.map(() => []), outOf = stages.map(() => []);
  transfers.forEach((each, i) => { into[each.to].push(i); outOf[each.from].push(i); });
  const unknown = () => new Float64Array(m).fill(Infinity);
  const forwardEnd = stages.map(unknown), arrived = transfers.map(unknown), returned = transfers.map(unknown);
  const moves = stages.map(() => []); // of what a stage sends
  const orders = [], times = [];
  for (let g = 0; g < groups; ++g) { orders.push(computeOrder(plan, g)); times.push([]); }
  const ready = ([stage, k, forward]) => {
    let time = forward ? 0 : forwardEnd[stage][k];
    for (const i of forward ? into[stage] : outOf[stage]) {
      if (!forward && transfers[i].grad === false) continue;
      time = Math.max(time, (forward ? arrived : returned)[i][k]);
    }
    return time;
  };
  for (let progress = true; progress;) {
    progress = false;
    for (let g = 0; g < groups; ++g) {
      while (times[g].length < orders[g].length) {
        const action = orders[g][times[g].length], [stage, k, forward] = action;
        const at = ready(action);
        if (at === Infinity) break;
        const begin = Math.max(at, times[g].length ? times[g][times[g].length - 1].end : 0);
        const end = begin + (forward ? stages[stage].predicted.forward_ns : stages[stage].predicted.backward_ns);
        if (forward) forwardEnd[stage][k] = end;
        for (const i of forward ? outOf[stage] : into[stage]) {
          const list = (forward ? arrived : returned)[i], took = forward ? transfers[i].forward_ns : transfers[i].backward_ns;
          const start = Math.max(end, k === 0 ? 0 : list[k - 1] === Infinity ? 0 : list[k - 1]);
          list[k] = start + took;
          if (took > 0) moves[stage].push({ begin: start, end: list[k], k, back: !forward, to: forward ? transfers[i].to : transfers[i].from });
        }
        times[g].push({ stage, k, forward, begin, end });
        progress = true;
      }
    }
  }
  const last = Math.max(plan.iteration_ns || 0, ...times.map((group) => (group.length ? group[group.length - 1].end : 0)));
  for (const list of moves) list.sort((a, b) => a.begin - b.begin);
  return { groups: times, moves, end: last, known: Boolean(notes.transfers) };
}

/** Bytes that a rank of each group holds over time: its peak, less what activations of fewer micro-batches take. */
function memoryOverTime(plan, times) {
  return times.groups.map((actions) => {
    const held = new Map(), most = new Map();
    const count = (each) => {
      const now = (held.get(each.stage) || 0) + (each.forward ? 1 : -1);
      held.set(each.stage, now);
      return now;
    };
    for (const each of actions) most.set(each.stage, Math.max(most.get(each.stage) || 0, count(each)));
    const per = new Map([...most].map(([s, k]) => [s, plan.stages[s].predicted.activation_bytes / Math.max(k, 1)]));
    held.clear();
    const points = [];
    let now = 0, highest = 0;
    for (const each of actions) {
      count(each);
      now += (each.forward ? 1 : -1) * per.get(each.stage);
      highest = Math.max(highest, now);
      points.push([each.forward ? each.begin : each.end, now]);
    }
    const stages = [...most.keys()];
    const peak = Math.max(...stages.map((s) => (plan.step_peak_bytes ? plan.step_peak_bytes[s] : plan.stages[s].predicted.peak_bytes)), 0);
    return { stages, peak, points: points.map(([at, bytes]) => [at, bytes + peak - highest]), base: peak - highest };
  });
}
