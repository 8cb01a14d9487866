/* Timeline: rows of ranges, host calls and streams on one canvas; search, sums of a span, launches and their kernels. */
let jumpTo = () => {};
let redrawTimeline = () => {};
let startTimeline = () => {};
const canvas = $("timeline-canvas");
if (canvas && data.timeline) {
  const time = data.timeline;
  const numbers = (packed) => {
    const text = atob(packed);
    let at = 0;
    return () => {
      let value = 0, scale = 1, byte;
      do { byte = text.charCodeAt(at++); value += (byte & 127) * scale; scale *= 128; } while (byte & 128);
      return value;
    };
  };
  const unpack = ({ label, kind, depth, count, data: packed, links }) => {
    const start = new Float64Array(count), end = new Float64Array(count), name = new Uint32Array(count), cls = new Uint8Array(count);
    const next = numbers(packed);
    let previous = 0, longest = 0;
    for (let i = 0; i < count; i++) {
      start[i] = previous += next();
      const length = next();
      end[i] = previous + length;
      longest = Math.max(longest, length);
      name[i] = next();
      cls[i] = next();
    }
    const track = { label, kind, depth, count, start, end, name, cls, longest };
    if (links) {
      const value = numbers(links);
      track.lag = new Float64Array(count);
      const keys = ["row", "operator", "module", "shape"];
      for (const key of keys) track[key] = new Uint32Array(count);
      for (let i = 0; i < count; i++) {
        track.lag[i] = value();
        const link = time.links[value()];
        for (let k = 0; k < 4; k++) track[keys[k]][i] = link[k];
      }
    }
    return track;
  };
  const tracks = time.tracks.map(unpack);
  const kernelTracks = tracks.filter((t) => t.kind === "kernel");
  const CALLS = ["launch", "waits for the GPU", "other call", "operator"];
  const HEIGHT = { range: 20, call: 18, kernel: 34 }, GAP = 5, AXIS = 22;
  let LABELS = 148;
  let y = AXIS;
  for (const track of tracks) { track.y = y; track.h = HEIGHT[track.kind]; y += track.h + GAP; }
  const height = y + 4;
  let from = 0, to = time.length, width = 0;
  let found = null, at0 = -1, chosen = null, span = null;
  const colors = {};
  const readColors = () => {
    const style = getComputedStyle(document.documentElement);
    for (const key of ["ink", "muted", "line", "soft", "accent", "idle", "bound", "unexplained", "bg", "bad", "wall"]) colors[key] = style.getPropertyValue("--" + key).trim();
    colors.classes = time.classes.map((c) => style.getPropertyValue("--c-" + c.replace(" ", "-")).trim() || colors.muted);
    colors.calls = [colors.wall, colors.idle, colors.unexplained, style.getPropertyValue("--c-reduction").trim()];
  };
  const x = (ns) => LABELS + ((ns - from) / (to - from)) * (width - LABELS);
  const at = (px) => from + ((px - LABELS) / (width - LABELS)) * (to - from);
  const firstVisible = (track, since = from) => {
    let low = 0, high = track.count;
    const limit = since - track.longest;
    while (low < high) { const middle = (low + high) >> 1; if (track.start[middle] < limit) low = middle + 1; else high = middle; }
    return low;
  };
  const color = (track, i) => track.kind === "kernel" ? colors.classes[track.cls[i]] : track.kind === "range" ? colors.soft : colors.calls[track.cls[i]] || colors.calls[2];
  /* names of rows have what they need, up to a part of the width; hovering says the whole of one that was cut */
  const labelOf = (track) => track.label.replace(/^GPU device (\d+) stream /, "GPU $1, stream ");
  const fitted = (pen, text, room) => {
    if (pen.measureText(text).width <= room) return text;
    let kept = text.length;
    while (kept > 1 && pen.measureText(text.slice(0, kept) + "…").width > room) kept--;
    return text.slice(0, kept) + "…";
  };
  const drawTrack = (pen, track) => {
    pen.fillStyle = colors.muted;
    pen.textAlign = "left";
    if (!track.depth) {
      pen.fillText(fitted(pen, labelOf(track), LABELS - 14), 8, track.y + track.h / 2 + 4);
    }
    let covered = -1;
    for (let i = firstVisible(track); i < track.count && track.start[i] < to; i++) {
      if (track.end[i] < from) continue;
      const left = Math.max(x(track.start[i]), LABELS), right = Math.min(Math.max(x(track.end[i]), left + 0.6), width);
      if (right <= covered + 0.3) continue;
      covered = right;
      pen.globalAlpha = found && !found.names.has(track.name[i]) ? 0.18 : 1;
      pen.fillStyle = color(track, i);
      pen.fillRect(left, track.y, Math.max(right - left - (right - left > 3 ? 0.6 : 0), 0.6), track.h);
      if (right - left > 34) {
        pen.fillStyle = track.kind === "range" ? colors.ink : colors.bg;
        pen.save();
        pen.beginPath();
        pen.rect(left, track.y, right - left - 3, track.h);
        pen.clip();
        pen.fillText(time.names[track.name[i]], left + 5, track.y + track.h / 2 + 4);
        pen.restore();
      }
    }
    pen.globalAlpha = 1;
  };
  const drawAxis = (pen) => {
    const shown = to - from, raw = shown / Math.max(2, (width - LABELS) / 110);
    const power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw);
    pen.textAlign = "center";
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
      pen.fillStyle = colors.line;
      pen.fillRect(x(t), AXIS - 4, 1, height);
      pen.fillStyle = colors.muted;
      pen.fillText(ms(t / 1e6), Math.min(x(t), width - 26), 13);
    }
  };
  /* an arrow from a launch to the kernel it started */
  const arrow = (pen, track, i) => {
    if (!track.lag || !track.lag[i]) return;
    const call = tracks[track.row[i]], begin = track.start[i] - (track.lag[i] - 1);
    const x0 = Math.max(x(begin), LABELS), x1 = x(track.start[i]), y0 = call.y + call.h, y1 = track.y;
    pen.strokeStyle = pen.fillStyle = colors.bad;
    pen.lineWidth = 1.5;
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.bezierCurveTo(x0, (y0 + y1) / 2, x1, (y0 + y1) / 2, x1, y1 - 5);
    pen.stroke();
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.lineTo(x1 - 4, y1 - 7);
    pen.lineTo(x1 + 4, y1 - 7);
    pen.fill();
  };
  const kernelsOf = (track, i) => {
    const row = tracks.indexOf(track), list = [];
    for (const one of kernelTracks) {
      if (!one.lag) continue;
      for (let k = firstVisible(one, track.start[i]); k < one.count && list.length < 40; k++) {
        if (one.lag[k] && one.row[k] === row && one.start[k] - (one.lag[k] - 1) === track.start[i]) list.push([one, k]);
        if (one.start[k] > track.end[i] + 5e7) break;
      }
    }
    return list;
  };
  let queued = false;
  const draw = () => {
    queued = false;
    const ratio = devicePixelRatio || 1;
    width = canvas.clientWidth;
    if (!width) return;
    if (canvas.width !== Math.round(width * ratio)) { canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio); canvas.style.height = height + "px"; }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "11.5px system-ui, sans-serif";
    LABELS = Math.min(Math.max(...tracks.map((t) => (t.depth ? 0 : pen.measureText(labelOf(t)).width))) + 20, Math.max(width * 0.24, 90));
    drawAxis(pen);
    for (const track of tracks) drawTrack(pen, track);
    if (chosen) {
      const [track, i] = chosen, left = Math.max(x(track.start[i]), LABELS);
      pen.strokeStyle = colors.ink;
      pen.lineWidth = 2;
      pen.strokeRect(left - 1, track.y - 1, Math.max(x(track.end[i]) - left, 1) + 2, track.h + 2);
      if (track.kind === "kernel") arrow(pen, track, i);
      else if (track.kind === "call") for (const [one, k] of kernelsOf(track, i)) arrow(pen, one, k);
    }
    if (span) {
      const left = Math.max(x(span[0]), LABELS), right = Math.min(x(span[1]), width);
      pen.globalAlpha = 0.14;
      pen.fillStyle = colors.accent;
      pen.fillRect(left, AXIS - 4, Math.max(right - left, 1), height);
      pen.globalAlpha = 1;
      pen.fillRect(left, AXIS - 4, 1, height);
      pen.fillRect(right, AXIS - 4, 1, height);
    }
    $("timeline-span").textContent = `${ms((to - from) / 1e6)} shown of ${ms(time.length / 1e6)}`;
  };
  redrawTimeline = () => { if (!queued) { queued = true; requestAnimationFrame(draw); } };
  let remembering = 0;
  const look = (start, end) => {
    const wide = Math.min(Math.max(end - start, 500), time.length);
    from = Math.min(Math.max(start, 0), time.length - wide);
    to = from + wide;
    redrawTimeline();
    clearTimeout(remembering);
    remembering = setTimeout(() => remember({ t: wide >= time.length ? null : `${Math.round(from)}-${Math.round(to)}` }), 250);
  };
  const zoom = (factor, center = (from + to) / 2) => look(center - (center - from) * factor, center + (to - center) * factor);
  jumpTo = (phase) => {
    const jump = time.jumps.find(({ name }) => name === phase);
    if (phase === "all" || !jump) { look(0, time.length); return; }
    const margin = 0.03 * (jump.end - jump.start);
    look(jump.start - margin, jump.end + margin);
  };

  /* what a span holds: GPU time by class and by name, how busy each stream was, and the host's calls */
  const clip = (track, i, [start, end]) => Math.max(0, Math.min(track.end[i], end) - Math.max(track.start[i], start));
  const sums = (within) => {
    const byName = new Map(), byClass = new Map(), parts = [];
    let kernels = 0, calls = 0, waiting = 0;
    for (const track of tracks) {
      if (track.kind === "range") continue;
      for (let i = firstVisible(track, within[0]); i < track.count && track.start[i] < within[1]; i++) {
        const length = clip(track, i, within);
        if (track.end[i] < within[0]) continue;
        if (track.kind === "call") {
          if (track.cls[i] < 3) calls++;
          if (track.cls[i] === 1) waiting += length;
          continue;
        }
        kernels++;
        const one = byName.get(track.name[i]) || [0, 0];
        byName.set(track.name[i], [one[0] + length, one[1] + 1]);
        byClass.set(track.cls[i], (byClass.get(track.cls[i]) || 0) + length);
        parts.push([Math.max(track.start[i], within[0]), Math.min(track.end[i], within[1])]);
      }
    }
    parts.sort((a, b) => a[0] - b[0]);
    let busy = 0, last = -Infinity;
    for (const [start, end] of parts) { busy += Math.max(0, end - Math.max(start, last)); last = Math.max(last, end); }
    return { byName, byClass, kernels, calls, waiting, busy };
  };
  const showSums = () => {
    const box = $("timeline-sums");
    box.hidden = !span;
    remember({ span: span ? span.map(Math.round).join("-") : null });
    redrawTimeline();
    if (!span) return;
    const length = span[1] - span[0], all = sums(span);
    const row = (...cells) => make("tr", "", ...cells.map((text, index) => make("td", index ? "num" : "", text)));
    const classes = [...all.byClass].sort((a, b) => b[1] - a[1]).map(([c, t]) => row(time.classes[c], ms(t / 1e6), percent(t / length)));
    const names = [...all.byName].sort((a, b) => b[1][0] - a[1][0]).slice(0, 8).map(([n, [t, c]]) => row(`${time.names[n]} (${group(String(c))}×)`, ms(t / 1e6), percent(t / length)));
    const table = (head, rows) => make("table", "", make("thead", "", make("tr", "", ...[head, "Time", "Of the span"].map((text, index) => make("th", index ? "num" : "", text)))), make("tbody", "", ...rows));
    const close = make("button", "plain tiny", "Clear");
    close.type = "button";
    close.addEventListener("click", () => { span = null; showSums(); canvas.focus(); });
    const into = make("button", "plain tiny", "Zoom to it");
    into.type = "button";
    into.addEventListener("click", () => look(...span));
    const words = `${ms(length / 1e6)} from ${ms(span[0] / 1e6)}: ${group(String(all.kernels))} kernels and copies; GPU busy ${ms(all.busy / 1e6)} (${percent(all.busy / length)}), idle ${ms((length - all.busy) / 1e6)}; ${group(String(all.calls))} runtime calls, ${ms(all.waiting / 1e6)} waiting in them.`;
    box.replaceChildren(make("p", "", make("b", "", "Selected: "), words, " ", into, " ", close), make("div", "pair", table("Class", classes), table("Kernel", names)));
  };

  /* search: what does not match fades; Enter goes to the next match */
  const search = $("timeline-search");
  const find = () => {
    const wanted = search.value.trim().toLowerCase();
    at0 = -1;
    found = null;
    if (wanted) {
      const names = new Set(), hits = [];
      time.names.forEach((name, index) => { if (name.toLowerCase().includes(wanted)) names.add(index); });
      let total = 0;
      for (const track of tracks) for (let i = 0; i < track.count; i++) if (names.has(track.name[i])) { hits.push([track, i]); if (track.kind === "kernel") total += track.end[i] - track.start[i]; }
      hits.sort((a, b) => a[0].start[a[1]] - b[0].start[b[1]]);
      found = { names, hits };
      $("timeline-found").textContent = `${group(String(hits.length))} found` + (total ? `, ${ms(total / 1e6)} on the GPU` : "");
    } else $("timeline-found").textContent = "";
    remember({ find: search.value.trim() });
    redrawTimeline();
  };
  const step = (by) => {
    if (!found || !found.hits.length) return;
    at0 = at0 < 0 ? (by > 0 ? 0 : found.hits.length - 1) : (at0 + by + found.hits.length) % found.hits.length;
    chosen = found.hits[at0];
    const [track, i] = chosen, wide = Math.min(to - from, Math.max(40 * (track.end[i] - track.start[i]), 50000));
    const middle = (track.start[i] + track.end[i]) / 2;
    look(middle - wide / 2, middle + wide / 2);
    $("timeline-found").textContent = `${group(String(at0 + 1))} of ${group(String(found.hits.length))}: ${describe(track, i).replace(/\n/g, ", ")}`;
  };
  search.addEventListener("input", find);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") { event.preventDefault(); step(event.shiftKey ? -1 : 1); }
    else if (event.key === "Escape") { search.value = ""; find(); canvas.focus(); }
  });

  const describe = (track, i) => {
    const lines = [time.names[track.name[i]] + (track.kind === "kernel" ? ` (${time.classes[track.cls[i]]})` : track.kind === "call" ? ` (${CALLS[track.cls[i]] || "call"})` : "")];
    lines.push(`${ms((track.end[i] - track.start[i]) / 1e6)}, starts at ${ms(track.start[i] / 1e6)}`);
    if (track.kind !== "kernel") return lines.join("\n");
    lines.push(track.label.replace("GPU ", ""));
    if (track.lag && track.lag[i]) lines.push(`${ms((track.lag[i] - 1) / 1e6)} after its launch began`);
    if (track.operator && track.operator[i]) lines.push("operator " + time.names[track.operator[i] - 1]);
    if (track.module && track.module[i]) lines.push("module " + time.names[track.module[i] - 1]);
    if (track.shape && track.shape[i]) lines.push(time.shapes[track.shape[i] - 1]);
    return lines.join("\n");
  };
  const under = (event) => {
    const track = tracks.find((t) => event.offsetY >= t.y && event.offsetY <= t.y + t.h);
    if (!track || event.offsetX < LABELS) return null;
    const when = at(event.offsetX), slack = (to - from) / (width - LABELS);
    for (let i = firstVisible(track); i < track.count && track.start[i] <= when + slack; i++) if (track.end[i] + slack >= when) return [track, i];
    return null;
  };

  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey && document.activeElement !== canvas) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, at(event.offsetX));
  }, { passive: false });
  let grabbed = null;
  canvas.addEventListener("pointerdown", (event) => {
    const selects = event.shiftKey || $("timeline-select").getAttribute("aria-pressed") === "true";
    grabbed = { x: event.clientX, from, to, selects, since: at(event.offsetX), moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (grabbed && !grabbed.moved) { chosen = under(event); redrawTimeline(); }
    if (grabbed && grabbed.moved && grabbed.selects) showSums();
    grabbed = null;
  });
  canvas.addEventListener("pointermove", (event) => {
    if (grabbed) {
      if (Math.abs(event.clientX - grabbed.x) > 3) grabbed.moved = true;
      if (!grabbed.moved) return;
      if (grabbed.selects) {
        const here = Math.min(Math.max(at(event.offsetX), 0), time.length);
        span = [Math.min(grabbed.since, here), Math.max(grabbed.since, here)];
        redrawTimeline();
        return;
      }
      const moved = ((event.clientX - grabbed.x) / (width - LABELS)) * (grabbed.to - grabbed.from);
      look(grabbed.from - moved, grabbed.to - moved);
      return;
    }
    const hit = under(event), row = event.offsetX < LABELS && tracks.findLast((t) => !t.depth && event.offsetY >= t.y);
    if (hit) showTip(describe(...hit), event.clientX, event.clientY);
    else if (row) showTip(labelOf(row), event.clientX, event.clientY);
    else hideTip();
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("dblclick", (event) => zoom(0.4, at(event.offsetX)));
  /* the next event of the chosen row, or of the first row of kernels */
  const walk = (by) => {
    const track = chosen ? chosen[0] : kernelTracks[0] || tracks[0];
    let i = chosen ? chosen[1] + by : firstVisible(track);
    if (!chosen) while (i < track.count - 1 && track.start[i] < from) i++;
    if (i < 0 || i >= track.count) return;
    chosen = [track, i];
    if (track.start[i] < from || track.start[i] > to) look(track.start[i] - (to - from) / 2, track.start[i] + (to - from) / 2);
    redrawTimeline();
    const box = canvas.getBoundingClientRect();
    showTip(describe(track, i), box.left + Math.max(x(track.start[i]), LABELS), box.top + track.y + track.h);
    $("timeline-found").textContent = describe(track, i).replace(/\n/g, ", ");
  };
  canvas.addEventListener("keydown", (event) => {
    const shown = to - from;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      ArrowRight: () => look(from + shown / 8, to + shown / 8), ArrowLeft: () => look(from - shown / 8, to - shown / 8),
      "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1.4), Home: () => look(0, shown), End: () => look(time.length - shown, time.length),
      n: () => walk(1), p: () => walk(-1), a: () => look(0, time.length), "/": () => search.focus(),
      s: () => { span = [from, to]; showSums(); }, Escape: () => { span = chosen = null; hideTip(); showSums(); },
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  });
  $("timeline-select").addEventListener("click", (event) => {
    const button = event.currentTarget;
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    canvas.classList.toggle("selects", button.getAttribute("aria-pressed") === "true");
  });
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => ({ in: () => zoom(0.5), out: () => zoom(2), all: () => look(0, time.length) })[button.dataset.zoom]());
  }
  for (const { name } of time.jumps) {
    const button = make("button", "plain", name === "decode" ? "Decode step" : "Prefill");
    button.type = "button";
    button.addEventListener("click", () => jumpTo(name));
    $("timeline-jumps").append(button, " ");
  }
  const legend = (text, paint) => {
    const key = make("span", "key");
    key.style.background = paint;
    $("timeline-legend").append(make("li", "", key, text));
  };
  const used = new Set(kernelTracks.flatMap((t) => [...new Set(t.cls)]));
  for (const index of [...used].sort((a, b) => a - b)) legend(time.classes[index], `var(--c-${time.classes[index].replace(" ", "-")})`);
  const called = new Set(tracks.filter((t) => t.kind === "call").flatMap((t) => [...new Set(t.cls)]));
  for (const index of [...called].sort((a, b) => a - b)) legend(CALLS[index] + " (host)", ["var(--wall)", "var(--idle)", "var(--unexplained)", "var(--c-reduction)"][index]);
  readColors();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColors(); redrawTimeline(); });
  new ResizeObserver(redrawTimeline).observe(canvas);
  const pair = (key) => {
    const parts = (state.get(key) || "").split("-").map(Number);
    return parts.length === 2 && parts.every(Number.isFinite) && parts[0] < parts[1] ? parts : null;
  };
  startTimeline = () => {
    const window_ = pair("t");
    if (window_) look(...window_);
    else jumpTo(body.dataset.phase);
    span = pair("span");
    if (span) showSums();
    if (state.get("find")) { search.value = state.get("find"); find(); }
  };
}
