"use strict";
// The timeline: lanes over cycles on a canvas. One object, `timeline`, has the view and the selection; `timeline.load`
// shows other data. On a node a lane has a rank; the lanes of other ranks than the chosen one have no height.

const timeline = (() => {
  const box = document.getElementById("timeline");
  if (!box) return null;
  const canvas = box.querySelector("canvas");
  const overview = document.querySelector("#overview canvas");
  const details = document.getElementById("details");
  const range = document.getElementById("range");
  const tip = document.getElementById("tip");
  const chosen = document.getElementById("rank");
  const marks = document.getElementById("marks");
  const MOST_RANKS = 2; // that are shown at once before one is chosen
  const RULER = 24, LANE = 22, SLOT = 11, BARRIER = 11, GAP = 16;
  const HEIGHTS = { wait: 0.55 };
  const view = { from: 0, to: 0 };
  let data = null, first = 0, last = 0;
  let selected = null;
  let paint = {};

  function load(next) {
    data = next;
    [first, last] = data.windows.whole;
    Object.assign(view, { from: first, to: last });
    offerRanks([...new Set(data.lanes.map((lane) => lane.rank))].filter((rank) => rank !== undefined));
    marks.replaceChildren(...data.marks.map(markButton));
    layOut();
    select(-1, 0);
  }

  function offerRanks(ranks) {
    chosen.replaceChildren(new Option("all ranks", ""), ...ranks.map((rank) => new Option(`rank ${rank}`, rank)));
    chosen.value = ranks.length > MOST_RANKS ? data.slowest : "";
    chosen.hidden = !ranks.length;
  }

  // A button that goes to an access of the verdict.
  function markButton(mark) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = mark.text;
    button.onclick = () => {
      if (data.lanes[mark.lane].hidden) { chosen.value = ""; layOut(); }
      select(mark.lane, mark.index, true);
      box.scrollIntoView({ block: "nearest" });
    };
    return button;
  }

  const together = (lane, other) => lane.cta === other.cta && lane.rank === other.rank;
  const cta = (lane) => (lane.rank === undefined ? `CTA ${lane.cta}` : `CTA ${lane.cta} of rank ${lane.rank}`);

  // Lay out lanes from top to bottom; operations of a lane that overlap get rows of their own.
  function layOut() {
    let y = RULER, before = null;
    data.lanes.forEach((lane) => {
      lane.hidden = chosen.value !== "" && lane.rank !== Number(chosen.value);
      lane.section = lane.hidden || !before ? 0 : !together(before, lane) ? GAP : !before.barrier && lane.barrier ? 8 : 0;
      lane.first = !lane.hidden && (!before || lane.section === GAP);
      lane.top = y += lane.section;
      lane.height = lane.hidden ? 0 : lane.barrier ? BARRIER : lane.ring ? SLOT : LANE;
      y += lane.height;
      before = lane.hidden ? before : lane;
      const ends = [];
      lane.row = lane.start.map((start, i) => {
        let row = ends.findIndex((end) => end <= start + 1);
        if (row < 0) row = ends.length < 6 ? ends.length : ends.indexOf(Math.min(...ends));
        ends[row] = start + lane.length[i];
        return row;
      });
      lane.rows = Math.max(1, ends.length);
      lane.longest = Math.max(...lane.length);
    });
    box.dataset.height = y + 4;
  }

  const value = (lane, column, i, missing) => (lane[column] ? lane[column][i] : missing);
  const nameOf = (lane, i) => data.names[lane.what[i]][0];
  const kindOf = (lane, i) => data.names[lane.what[i]][1];
  const number = (count) => Math.round(count).toLocaleString("en-US");
  const gutter = () => (canvas.clientWidth < 640 ? 84 : 132);
  const scale = () => (canvas.clientWidth - gutter() - 6) / (view.to - view.from);
  const x = (cycle) => gutter() + (cycle - view.from) * scale();
  const cycleAt = (pixel) => view.from + (pixel - gutter()) / scale();

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const names = ["page", "panel", "ink", "quiet", "rule", "link", "accent", "copy", "multiply", "store", "other", "wait",
      "filling", "full", "in-use", "parity-0", "parity-1"];
    paint = Object.fromEntries(names.map((name) => [name.replace("in-", "in ").replace("ty-", "ty "), style.getPropertyValue(`--${name}`).trim()]));
  }

  // Black or white, whichever is easier to read on a colour.
  function inkOn(colour) {
    const part = (at) => {
      const light = parseInt(colour.slice(at, at + 2), 16) / 255;
      return light <= 0.04045 ? light / 12.92 : ((light + 0.055) / 1.055) ** 2.4;
    };
    return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5) > 0.179 ? "#000000" : "#ffffff";
  }

  function prepare(target, height) {
    const ratio = window.devicePixelRatio || 1;
    target.style.height = `${height}px`;
    target.width = Math.max(1, Math.round(target.clientWidth * ratio));
    target.height = Math.round(height * ratio);
    const context = target.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return context;
  }

  function draw() {
    readColours();
    const height = Number(box.dataset.height);
    const context = prepare(canvas, height);
    context.fillStyle = paint.page;
    context.fillRect(0, 0, canvas.clientWidth, height);
    drawRuler(context, height);
    context.save();
    context.beginPath();
    context.rect(gutter(), 0, canvas.clientWidth - gutter(), height);
    context.clip();
    data.lanes.forEach((lane) => lane.hidden || drawLane(context, lane));
    drawMarks(context);
    drawSelection(context);
    context.restore();
    drawNames(context);
    drawOverview();
    range.textContent = `cycles ${number(view.from)} to ${number(view.to)} (${((view.to - view.from) / data.cyclesPerUs).toPrecision(3)} µs)`;
  }

  function drawRuler(context, height) {
    const rough = (view.to - view.from) / Math.max(2, (canvas.clientWidth - gutter()) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(1, power * [1, 2, 5, 10].find((each) => each * power >= rough));
    context.font = "11px sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
      context.fillStyle = paint.rule;
      context.fillRect(x(at), 14, 1, height);
      context.fillStyle = paint.quiet;
      context.fillText(number(at), x(at) + 3, 9);
    }
  }

  function extent(lane, i) {
    const height = lane.height / lane.rows;
    const share = HEIGHTS[kindOf(lane, i)] || (lane.barrier ? 0.8 : 0.86);
    return { top: lane.top + height * (lane.row[i] + (1 - share) / 2), height: height * share };
  }

  function drawLane(context, lane) {
    const drawn = {};
    const begin = firstVisible(lane);
    for (let i = begin; i < lane.start.length && lane.start[i] < view.to; i++) {
      const left = x(lane.start[i]), right = x(lane.start[i] + lane.length[i]);
      if (right < gutter()) continue;
      const kind = kindOf(lane, i), key = kind + lane.row[i];
      if (right - left < 0.6 && drawn[key] > left) continue;
      const { top, height } = extent(lane, i);
      context.fillStyle = paint[kind] || paint.other;
      const wide = Math.max(right - left, 0.7);
      context.fillRect(left, top, wide, height);
      drawn[key] = left + 0.6;
      if (wide > 3 && kind !== "wait") {
        context.fillStyle = paint.page;
        context.fillRect(right - 0.5, top, 0.5, height);
      }
      if (wide > 24 && height > 9) label(context, lane, i, Math.max(left, gutter()), Math.min(right, canvas.clientWidth));
    }
  }

  function firstVisible(lane) {
    let low = 0, high = lane.start.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane.start[middle] + lane.longest < view.from) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  function label(context, lane, i, left, right) {
    const { top, height } = extent(lane, i);
    const text = nameOf(lane, i);
    context.font = `${height > 11 ? 11 : 9}px sans-serif`;
    if (context.measureText(text).width + 8 > right - left) return;
    context.fillStyle = inkOn(paint[kindOf(lane, i)] || paint.other);
    context.textBaseline = "middle";
    context.textAlign = "center";
    context.fillText(text, (left + right) / 2, top + height / 2 + 0.5);
  }

  // Names of lanes; the slots of a ring and the mbarriers of one name share one.
  function drawNames(context) {
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let i = 0, next; i < data.lanes.length; i = next) {
      const lane = data.lanes[i];
      next = i + 1;
      while (lane.ring && next < data.lanes.length && data.lanes[next].ring === lane.ring && together(data.lanes[next], lane)) next++;
      if (lane.hidden) continue;
      const end = data.lanes[next - 1];
      const text = next - i > 1 ? `${lane.ring} [0–${next - i - 1}]` : lane.name;
      context.font = `${lane.barrier ? 10 : 12}px sans-serif`;
      context.fillStyle = lane.barrier ? paint.quiet : paint.ink;
      if (!lane.barrier || next - i > 1 || lane.height >= BARRIER) context.fillText(text, gutter() - 8, (lane.top + end.top + end.height) / 2);
      if (lane.first) {
        context.font = "bold 11px sans-serif";
        context.textAlign = "left";
        context.fillStyle = paint.quiet;
        const title = lane.section ? lane.top - GAP / 2 + 1 : 9;
        context.fillText(cta(lane), 0, title);
        context.textAlign = "right";
        context.fillStyle = paint.rule;
        if (lane.section) context.fillRect(context.measureText(cta(lane)).width + 8, title, canvas.clientWidth, 1);
      }
    }
  }

  // The operation that ended the phase: the one issued then, else the last of its lane that began before the end.
  function source(phase) {
    const lane = data.lanes[data.phases.lane[phase]];
    if (!lane) return -1;
    const issued = lane.start.indexOf(data.phases.issued[phase]);
    if (issued >= 0) return issued;
    let found = -1;
    for (let i = 0; i < lane.start.length && lane.start[i] <= data.phases.end[phase]; i++) {
      if (kindOf(lane, i) !== "wait") found = i;
    }
    return found;
  }

  // The accesses of a verdict: an outline with the number of the finding.
  function drawMarks(context) {
    data.marks.forEach((mark) => {
      const lane = data.lanes[mark.lane];
      if (lane.hidden) return;
      outline(context, lane, mark.index, paint.accent);
      const text = mark.text.split(".")[0], { top } = extent(lane, mark.index);
      context.font = "bold 10px sans-serif";
      const width = context.measureText(text).width + 6, start = x(lane.start[mark.index]) - 1;
      const left = start < gutter() ? start - width : Math.max(start - width, gutter());
      context.fillStyle = paint.accent;
      context.fillRect(left, top - 1, width, 13);
      context.fillStyle = inkOn(paint.accent);
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.fillText(text, left + 3, top + 6);
    });
  }

  function drawSelection(context) {
    if (!selected) return;
    const lane = data.lanes[selected.lane];
    outline(context, lane, selected.index, paint.link);
    const phase = value(lane, "released", selected.index, -1);
    const from = phase < 0 ? null : data.lanes[data.phases.lane[phase]];
    if (!from) return;
    const index = source(phase);
    if (index >= 0) outline(context, from, index, paint.accent);
    const at = lane.barrier ? data.phases.end[phase] : lane.start[selected.index] + lane.length[selected.index];
    arrow(context, x(data.phases.end[phase]), from.top + from.height / 2, x(at), lane.top + lane.height / 2);
  }

  function outline(context, lane, i, colour) {
    const { top, height } = extent(lane, i);
    context.strokeStyle = colour;
    context.lineWidth = 2;
    context.strokeRect(x(lane.start[i]) - 1, top - 1, Math.max(4, lane.length[i] * scale() + 2), height + 2);
  }

  function arrow(context, x0, y0, x1, y1) {
    const way = Math.sign(y1 - y0) || 1;
    context.strokeStyle = context.fillStyle = paint.accent;
    context.lineWidth = 2;
    context.beginPath();
    context.arc(x0, y0, 3, 0, 7);
    context.fill();
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1, y1 - way * 6);
    context.stroke();
    context.beginPath();
    context.moveTo(x1, y1);
    context.lineTo(x1 - 5, y1 - way * 8);
    context.lineTo(x1 + 5, y1 - way * 8);
    context.fill();
  }

  function drawOverview() {
    const context = prepare(overview, 34);
    const width = overview.clientWidth, unit = width / (last - first);
    context.fillStyle = paint.panel;
    context.fillRect(0, 0, width, 34);
    const roles = data.lanes.filter((lane) => lane.cta === 0 && !lane.ring && !lane.barrier && !lane.hidden);
    const each = Math.max(1, Math.floor(6 / new Set(roles.map((lane) => lane.rank)).size));
    const shown = roles.filter((lane, i) => i < each || roles[i - each].rank !== lane.rank);
    shown.forEach((lane, row) => {
      for (let i = 0; i < lane.start.length; i++) {
        if (kindOf(lane, i) === "wait") continue;
        context.fillStyle = paint[kindOf(lane, i)] || paint.other;
        context.fillRect((lane.start[i] - first) * unit, 4 + row * (26 / shown.length), Math.max(0.5, lane.length[i] * unit), 26 / shown.length - 1);
      }
    });
    context.strokeStyle = paint.ink;
    context.lineWidth = 2;
    context.strokeRect((view.from - first) * unit + 1, 1, Math.max(4, (view.to - view.from) * unit - 2), 32);
  }

  // Views.

  function show(from, to) {
    const length = Math.min(last - first, Math.max(20, to - from));
    view.from = Math.max(first, Math.min(from, last - length));
    view.to = view.from + length;
    tip.hidden = true;
    draw();
  }

  function zoom(factor, around = (view.from + view.to) / 2) {
    show(around - (around - view.from) / factor, around + (view.to - around) / factor);
  }

  const pan = (share) => show(view.from + share * (view.to - view.from), view.to + share * (view.to - view.from));

  // Selection.

  function select(lane, index, follow = false) {
    selected = lane < 0 ? null : { lane, index };
    details.replaceChildren(...(selected ? describe(lane, index) : [paragraph("Click an operation. A wait shows which operation ended it.")]));
    if (selected && follow) reveal(data.lanes[lane], index);
    draw();
  }

  function reveal(lane, index) {
    const from = lane.start[index], to = from + lane.length[index], length = view.to - view.from;
    if (to > view.from + 0.05 * length && to < view.to - 0.02 * length) return;
    show(to - 0.6 * length, to + 0.4 * length);
  }

  function describe(lane, index) {
    const row = data.lanes[lane], phase = value(row, "released", index, -1);
    const found = facts(row, index).map((text, i) => paragraph(text, i ? "" : "strong"));
    if (phase < 0) return found;
    const by = data.lanes[data.phases.lane[phase]], at = source(phase);
    const who = by ? `${by.name}, ${cta(by)}${at >= 0 ? `: ${nameOf(by, at)}` : ""}` : "an operation outside the timeline";
    const text = `${row.barrier ? "Ended" : "Released"} by ${who}, issued at cycle ${number(data.phases.issued[phase])}, ${code(data.phases.where[phase])}`;
    found.push(paragraph(text, "release"));
    if (by && at >= 0) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "Go to that operation (Enter)";
      button.onclick = () => { select(data.phases.lane[phase], at, true); box.focus(); };
      found.push(button);
    }
    return found;
  }

  function facts(lane, i) {
    const start = lane.start[i], length = lane.length[i];
    const what = lane.barrier ? `${lane.name}, phase ${lane.phase[i]}, ${cta(lane)}` : `${lane.name}, ${cta(lane)}: ${nameOf(lane, i)}`;
    const found = [what, `cycles ${number(start)} to ${number(start + length)}: ${number(length)} cycles, ${(length / data.cyclesPerUs).toPrecision(3)} µs`];
    const bytes = value(lane, "bytes", i, 0), phase = value(lane, "phase", i, -1), released = value(lane, "released", i, -1);
    if (bytes) found.push(`${number(bytes)} bytes`);
    if (released >= 0 && !lane.barrier) {
      const delivered = data.phases.bytes[released];
      found.push(`phase ${data.phases.number[released]} of ${data.phases.barrier[released]} of CTA ${data.phases.cta[released]}${delivered ? `, ${number(delivered)} bytes` : ""}`);
    } else if (phase >= 0 && !lane.barrier) found.push(`phase ${phase}`);
    found.push(code(lane.where[i]));
    const at = data.lanes.indexOf(lane);
    return found.concat(data.marks.filter((mark) => mark.lane === at && mark.index === i).map((mark) => mark.text));
  }

  const code = (where) => data.wheres[where] + (data.code[where] ? `  ${data.code[where]}` : "");

  function paragraph(text, kind = "") {
    const found = document.createElement("p");
    const inside = kind === "strong" ? found.appendChild(document.createElement("strong")) : found;
    if (kind === "release") found.className = "release";
    inside.textContent = text;
    return found;
  }

  function hit(event) {
    const place = canvas.getBoundingClientRect();
    const cycle = cycleAt(event.clientX - place.left), y = event.clientY - place.top, slack = 3 / scale();
    const lane = data.lanes.findIndex((each) => y >= each.top && y < each.top + each.height);
    if (lane < 0 || event.clientX - place.left < gutter()) return null;
    const row = data.lanes[lane];
    let found = null, nearest = Infinity;
    for (let i = firstVisible(row); i < row.start.length && row.start[i] <= cycle + slack; i++) {
      const distance = Math.max(row.start[i] - cycle, cycle - row.start[i] - row.length[i], 0);
      const rows = Math.floor((y - row.top) / (row.height / row.rows)) === row.row[i] ? 0 : slack / 2;
      if (distance + rows <= Math.min(slack, nearest)) { nearest = distance + rows; found = { lane, index: i }; }
    }
    return found;
  }

  // The middle of an operation on the screen.
  function position(lane, index) {
    const row = data.lanes[lane], place = canvas.getBoundingClientRect(), { top, height } = extent(row, index);
    return { clientX: place.left + x(row.start[index] + row.length[index] / 2), clientY: place.top + top + height / 2 };
  }

  // Pointers: one drags, two zoom; a press without a move selects.

  const pointers = new Map();
  let moved = 0;

  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" && event.button) return;
    if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, event.clientX);
    moved = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!pointers.has(event.pointerId)) return hover(event);
    const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
    const before = pointers.get(event.pointerId), step = event.clientX - before;
    moved += Math.abs(step);
    pointers.set(event.pointerId, event.clientX);
    if (others.length) {
      const place = canvas.getBoundingClientRect().left;
      zoom(Math.max(20, Math.abs(event.clientX - others[0])) / Math.max(20, Math.abs(before - others[0])), cycleAt((event.clientX + others[0]) / 2 - place));
    } else if (moved > 3) show(view.from - step / scale(), view.to - step / scale());
  });
  canvas.addEventListener("pointerup", (event) => {
    if (!pointers.delete(event.pointerId) || moved > 3 || pointers.size) return;
    const found = hit(event);
    select(found ? found.lane : -1, found ? found.index : 0);
  });
  canvas.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("dblclick", (event) => zoom(3, cycleAt(event.clientX - canvas.getBoundingClientRect().left)));
  canvas.addEventListener("wheel", (event) => {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : event.shiftKey ? event.deltaY : 0;
    if (!sideways && !event.ctrlKey && !event.metaKey) return; // the page scrolls
    event.preventDefault();
    if (sideways) return pan(sideways / canvas.clientWidth);
    zoom(Math.exp(-event.deltaY / 150), cycleAt(event.clientX - canvas.getBoundingClientRect().left));
  }, { passive: false });

  function hover(event) {
    const found = event.pointerType === "touch" ? null : hit(event);
    tip.hidden = !found;
    if (!found) return;
    tip.textContent = facts(data.lanes[found.lane], found.index).join("\n");
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 18, window.innerHeight - tip.offsetHeight - 8))}px`;
  }

  function centre(event) {
    if (event.type === "pointermove" && !event.buttons) return;
    const place = overview.getBoundingClientRect(), half = (view.to - view.from) / 2;
    const at = first + ((event.clientX - place.left) / place.width) * (last - first);
    show(at - half, at + half);
  }
  overview.addEventListener("pointerdown", centre);
  overview.addEventListener("pointermove", centre);

  // Keys.

  function step(way) {
    const top = data.lanes.findIndex((lane) => !lane.hidden);
    if (!selected) return select(top, firstVisible(data.lanes[top]), true);
    const count = data.lanes[selected.lane].start.length;
    select(selected.lane, Math.max(0, Math.min(count - 1, selected.index + way)), true);
  }

  function change(way) {
    if (!selected) return step(0);
    let lane = selected.lane + way;
    while (data.lanes[lane] && data.lanes[lane].hidden) lane += way;
    if (!data.lanes[lane]) return;
    const at = data.lanes[selected.lane].start[selected.index] + data.lanes[selected.lane].length[selected.index] / 2;
    const next = data.lanes[lane].start.findIndex((start, i) => start + data.lanes[lane].length[i] > at);
    select(lane, next < 0 ? data.lanes[lane].start.length - 1 : next, true);
  }

  function follow() {
    const phase = selected ? value(data.lanes[selected.lane], "released", selected.index, -1) : -1;
    const index = phase < 0 ? -1 : source(phase);
    if (index >= 0) select(data.phases.lane[phase], index, true);
  }

  const keys = {
    ArrowLeft: (event) => (event.shiftKey ? pan(-0.25) : step(-1)),
    ArrowRight: (event) => (event.shiftKey ? pan(0.25) : step(1)),
    ArrowUp: () => change(-1),
    ArrowDown: () => change(1),
    "+": () => zoom(2, focus()), "=": () => zoom(2, focus()), "-": () => zoom(0.5, focus()),
    0: () => show(first, last), Enter: follow, Escape: () => select(-1, 0),
  };
  // The cycle around which keys zoom: the end of the selected operation if it is in view.
  function focus() {
    if (!selected) return undefined;
    const lane = data.lanes[selected.lane], end = lane.start[selected.index] + lane.length[selected.index];
    return end >= view.from && end <= view.to ? end : undefined;
  }
  box.addEventListener("keydown", (event) => {
    const action = event.ctrlKey || event.metaKey || event.altKey ? null : keys[event.key];
    if (!action) return;
    event.preventDefault();
    action(event);
  });

  document.querySelectorAll("[data-window]").forEach((button) => {
    button.onclick = () => show(...data.windows[button.dataset.window]);
  });
  document.querySelectorAll("[data-zoom]").forEach((button) => {
    button.onclick = () => zoom(Number(button.dataset.zoom), focus());
  });
  chosen.onchange = () => { layOut(); select(-1, 0); };
  load(JSON.parse(document.getElementById("data").textContent).timeline);
  new ResizeObserver(draw).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  return { get data() { return data; }, load, view, select, position, zoom, selection: () => selected };
})();
