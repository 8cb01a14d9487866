"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("data").textContent);
  const body = document.body;

  /* numbers, the same way as in the markdown */
  const group = (text) => {
    const [whole, part] = text.split(".");
    return whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",") + (part ? "." + part : "");
  };
  const digits = (value, count = 3) => {
    if (value === 0) return "0";
    const places = count - 1 - Math.floor(Math.log10(Math.abs(value)));
    return group(value.toFixed(Math.min(Math.max(places, 0), 12)));
  };
  const ms = (v) => {
    const size = Math.abs(v);
    if (size >= 10000) return digits(v / 1e3, 4) + " s";
    if (size >= 0.0995 || v === 0) return digits(v, size >= 1 ? 4 : 3) + " ms";
    return size >= 1e-4 ? digits(v * 1e3) + " µs" : digits(v * 1e6) + " ns";
  };
  const percent = (share) => (share > 0 && share < 1e-4 ? "< 0.01 %" : digits(100 * share, share < 0.9995 ? 3 : 4) + " %");
  const scaled = (v, unit) => {
    for (const [name, size] of [["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6]]) if (v >= size) return digits(v / size) + " " + name + unit;
    return digits(v, 4) + " " + unit;
  };

  /* one tooltip for everything that has one, by mouse and by keyboard */
  const tip = $("tip");
  const showTip = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(6, Math.min(x + 14, innerWidth - box.width - 6)) + "px";
    tip.style.top = (y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 18) + "px";
  };
  const hideTip = () => { tip.hidden = true; };
  const tipText = (element) => element.dataset.tip || (element.classList.contains("p") ? element.getAttribute("aria-label") : "");
  for (const element of document.querySelectorAll("[title]")) {
    element.dataset.tip = element.title;
    element.removeAttribute("title");
  }
  document.addEventListener("mouseover", (event) => {
    const element = event.target.closest("[data-tip], .p");
    if (element) showTip(tipText(element), event.clientX, event.clientY);
    else if (event.target.id !== "timeline-canvas") hideTip();
  });
  document.addEventListener("focusin", (event) => {
    const element = event.target.closest("[data-tip], .p");
    if (!element || !element.matches(":focus-visible, .p")) return;
    const box = element.getBoundingClientRect();
    showTip(tipText(element), box.left + box.width / 2, box.top + box.height / 2);
  });
  document.addEventListener("focusout", hideTip);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

  /* small tables: sort the rows that are there */
  const plain = (text) => {
    const found = /^[≈<+ ]*(-?[\d,]*\.?\d+)\s*(ns|µs|ms|s|%|k|M|G|T|P)?/.exec(text.trim());
    if (!found) return null;
    const scale = { ns: 1e-6, "µs": 1e-3, ms: 1, s: 1e3, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15 };
    return parseFloat(found[1].replace(/,/g, "")) * (scale[found[2]] || 1);
  };
  const compare = (a, b) => {
    if (a === null || a === undefined || a === "") return b === null || b === undefined || b === "" ? 0 : 1;
    if (b === null || b === undefined || b === "") return -1;
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  };
  /* unknown values stay at the end in both directions */
  const ordered = (rows, value, down) => rows.slice().sort((a, b) => {
    const x = value(a), y = value(b), order = compare(x, y);
    const isUnknown = [x, y].some((v) => v === null || v === undefined || v === "");
    return isUnknown || !down ? order : -order;
  });
  for (const table of document.querySelectorAll("table.sortable")) {
    table.querySelectorAll("thead th").forEach((th, column) => {
      if (!th.textContent.trim()) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...th.childNodes);
      th.append(button);
      const isNumber = th.classList.contains("num");
      button.addEventListener("click", () => {
        const down = th.getAttribute("aria-sort") ? th.getAttribute("aria-sort") === "ascending" : isNumber;
        for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
        th.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows];
        const value = (row) => { const text = row.cells[column].textContent; return text === "—" ? null : isNumber ? plain(text) : text; };
        table.tBodies[0].append(...ordered(rows, value, down));
      });
    });
  }

  /* kernels */
  const kernelTable = $("kernel-table");
  let redrawKernels = () => {};
  if (kernelTable) {
    const { rows, totals, units, fields } = data.kernels;
    const PAGE = 60;
    let column = "time", down = true, limit = PAGE;
    /* kernels whose phase nobody knows are shown over the whole capture */
    const phase = () => (totals[body.dataset.phase] === null ? "all" : body.dataset.phase);
    const place = new Map(fields.map((name, index) => [name, index]));
    const field = (r, name) => r[place.get(name)];
    const time = (r) => field(r, "time_" + phase());
    const share = (r) => (time(r) === null || !totals[phase()] ? null : time(r) / totals[phase()]);
    const byPhase = { time, share, launches: (r) => field(r, "launches_" + phase()) };
    const value = (key) => byPhase[key] || ((r) => field(r, key));
    const unit = { time: "ms", share: "share", launches: "launches", ...units };
    const text = {
      ms, share: percent, launches: (v) => (v >= 1000 || Number.isInteger(v) ? group(v.toFixed(0)) : digits(v)),
      us: (v) => ms(v / 1e3), "%": (v) => digits(v) + " %", "B/s": (v) => digits(v / 1e9) + " GB/s", "FLOP/s": (v) => scaled(v, "FLOP/s"),
    };
    const columns = [...kernelTable.querySelectorAll("thead th")].map((th) => th.dataset.col);
    const headings = [...kernelTable.querySelectorAll("thead th")];
    const numberCell = (key, r) => {
      const td = document.createElement("td"), v = value(key)(r);
      td.className = "num";
      if (v === null || v === undefined) { td.textContent = "—"; td.classList.add("none"); return td; }
      td.textContent = text[unit[key]](v);
      if (key === "roof") {
        const meter = document.createElement("span"), fill = document.createElement("i");
        meter.className = "meter";
        meter.setAttribute("aria-hidden", "true");
        fill.style.width = Math.min(100, v) + "%";
        meter.append(fill);
        td.append(meter);
      }
      return td;
    };
    const nameCell = (r, tr) => {
      const td = document.createElement("td"), button = document.createElement("button");
      button.type = "button";
      button.className = "kname mono";
      button.textContent = field(r, "name");
      button.setAttribute("aria-expanded", "false");
      button.addEventListener("click", () => {
        const open = button.getAttribute("aria-expanded") === "true";
        button.setAttribute("aria-expanded", String(!open));
        if (open) { tr.nextSibling.remove(); return; }
        const full = document.createElement("tr"), cell = document.createElement("td"), code = document.createElement("code");
        full.className = "full";
        cell.colSpan = columns.length;
        code.textContent = field(r, "full") || field(r, "name");
        cell.append(code);
        for (const [label, key] of [["Occupancy limited by", "limiter"], ["Module", "module"], ["ncu", "advice"]]) {
          const words = field(r, key);
          if (!words) continue;
          const line = document.createElement("div");
          line.className = "small muted";
          line.textContent = label + ": " + words;
          cell.append(line);
        }
        if (field(r, "generated")) {
          const line = document.createElement("div"), link = document.createElement("a");
          line.className = "small muted";
          link.href = field(r, "generated");
          link.textContent = field(r, "generated");
          line.append("Written by torch.compile: ", link);
          cell.append(line);
        }
        full.append(cell);
        tr.after(full);
      });
      td.append(button);
      return td;
    };
    const rowOf = (r) => {
      const tr = document.createElement("tr");
      for (const key of columns) {
        if (key === "name") tr.append(nameCell(r, tr));
        else if (key === "class") {
          const td = document.createElement("td"), dot = document.createElement("span");
          dot.className = "dot";
          dot.style.background = `var(--c-${field(r, "class").replace(" ", "-")})`;
          td.append(dot, field(r, "class"));
          tr.append(td);
        } else if (!unit[key]) {
          const td = document.createElement("td"), words = field(r, key);
          td.textContent = words || "—";
          if (!words) td.className = "none";
          tr.append(td);
        } else tr.append(numberCell(key, r));
      }
      return tr;
    };
    redrawKernels = () => {
      const wanted = $("kernel-filter").value.trim().toLowerCase(), kind = $("kernel-class").value;
      const inView = rows.filter((r) => phase() === "all" || time(r) !== null);
      const isNamed = (r) => field(r, "name").toLowerCase().includes(wanted) || (field(r, "full") || "").toLowerCase().includes(wanted);
      const kept = inView.filter((r) => (!kind || field(r, "class") === kind) && (!wanted || isNamed(r)));
      const shown = ordered(kept, value(column), down).slice(0, limit);
      kernelTable.tBodies[0].replaceChildren(...shown.map(rowOf));
      const where = { all: "of the whole capture", prefill: "of one prefill", decode: "of one decode step" }[phase()];
      $("kernel-count").textContent = `${group(String(kept.length))} of ${group(String(rows.length))} kernels, times ${where}`;
      $("kernel-more").hidden = kept.length <= limit;
      $("kernel-more").textContent = `Show more (${group(String(kept.length - shown.length))} left)`;
    };
    headings.forEach((th) => th.querySelector("button").addEventListener("click", () => {
      const isSame = column === th.dataset.col;
      down = isSame ? !down : th.classList.contains("num");
      column = th.dataset.col;
      for (const other of headings) other.removeAttribute("aria-sort");
      th.setAttribute("aria-sort", down ? "descending" : "ascending");
      redrawKernels();
    }));
    $("kernel-filter").addEventListener("input", () => { limit = PAGE; redrawKernels(); });
    $("kernel-class").addEventListener("change", () => { limit = PAGE; redrawKernels(); });
    $("kernel-more").addEventListener("click", () => { limit += 500; redrawKernels(); });
  }

  /* roofline: one tab stop, arrows walk from left to right */
  const dots = [...document.querySelectorAll("#roofline-points .p")];
  if (dots.length) {
    const box = new Map(dots.map((dot) => [dot, dot.getBBox()]));
    dots.sort((a, b) => box.get(a).x - box.get(b).x);
    dots[0].tabIndex = 0;
    $("roofline-points").addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const at = dots.indexOf(document.activeElement);
      if (!step || at < 0) return;
      event.preventDefault();
      dots[at].tabIndex = -1;
      const next = dots[(at + step + dots.length) % dots.length];
      next.tabIndex = 0;
      next.focus();
    });
  }

  /* timeline */
  let jumpTo = () => {};
  let redrawTimeline = () => {};
  const canvas = $("timeline-canvas");
  if (canvas && data.timeline) {
    const time = data.timeline;
    const unpack = ({ label, kind, depth, count, data: packed }) => {
      const bytes = atob(packed), start = new Float64Array(count), end = new Float64Array(count);
      const name = new Uint32Array(count), cls = new Uint8Array(count);
      let at = 0, previous = 0, longest = 0;
      const next = () => {
        let value = 0, scale = 1, byte;
        do { byte = bytes.charCodeAt(at++); value += (byte & 127) * scale; scale *= 128; } while (byte & 128);
        return value;
      };
      for (let i = 0; i < count; i++) {
        start[i] = previous += next();
        const length = next();
        end[i] = previous + length;
        longest = Math.max(longest, length);
        name[i] = next();
        cls[i] = next();
      }
      return { label, kind, depth, count, start, end, name, cls, longest };
    };
    const tracks = time.tracks.map(unpack);
    const HEIGHT = { range: 20, call: 18, kernel: 34 }, GAP = 5, LABELS = 132, AXIS = 22;
    let y = AXIS;
    for (const track of tracks) { track.y = y; track.h = HEIGHT[track.kind]; y += track.h + GAP; }
    const height = y + 4;
    let from = 0, to = time.length, width = 0;
    const colors = {};
    const readColors = () => {
      const style = getComputedStyle(document.documentElement);
      for (const key of ["ink", "muted", "line", "soft", "accent", "idle", "bound", "unexplained", "bg"]) colors[key] = style.getPropertyValue("--" + key).trim();
      colors.classes = time.classes.map((c) => style.getPropertyValue("--c-" + c.replace(" ", "-")).trim() || colors.muted);
      colors.operator = style.getPropertyValue("--c-reduction").trim();
      colors.calls = { launch: colors.accent, synchronise: colors.idle };
    };
    const x = (ns) => LABELS + ((ns - from) / (to - from)) * (width - LABELS);
    const at = (px) => from + ((px - LABELS) / (width - LABELS)) * (to - from);
    const firstVisible = (track) => {
      let low = 0, high = track.count;
      const limit = from - track.longest;
      while (low < high) { const middle = (low + high) >> 1; if (track.start[middle] < limit) low = middle + 1; else high = middle; }
      return low;
    };
    const color = (track, i) => track.kind === "kernel" ? colors.classes[track.cls[i]] : track.kind === "range" ? colors.soft : colors.calls[time.names[track.name[i]]] || colors.operator;
    const drawTrack = (pen, track) => {
      pen.fillStyle = colors.muted;
      pen.textAlign = "left";
      pen.fillText(track.depth ? "" : track.label, 8, track.y + track.h / 2 + 4, LABELS - 14);
      let covered = -1;
      for (let i = firstVisible(track); i < track.count && track.start[i] < to; i++) {
        if (track.end[i] < from) continue;
        const left = Math.max(x(track.start[i]), LABELS), right = Math.min(Math.max(x(track.end[i]), left + 0.6), width);
        if (right <= covered + 0.3) continue;
        covered = right;
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
    };
    const drawAxis = (pen) => {
      const span = to - from, raw = span / Math.max(2, (width - LABELS) / 110);
      const power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw);
      pen.textAlign = "center";
      for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
        pen.fillStyle = colors.line;
        pen.fillRect(x(t), AXIS - 4, 1, height);
        pen.fillStyle = colors.muted;
        pen.fillText(ms(t / 1e6), Math.min(x(t), width - 26), 13);
      }
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
      drawAxis(pen);
      for (const track of tracks) drawTrack(pen, track);
      $("timeline-span").textContent = `${ms((to - from) / 1e6)} shown of ${ms(time.length / 1e6)}`;
    };
    redrawTimeline = () => { if (!queued) { queued = true; requestAnimationFrame(draw); } };
    const look = (start, end) => {
      const span = Math.min(Math.max(end - start, 500), time.length);
      from = Math.min(Math.max(start, 0), time.length - span);
      to = from + span;
      redrawTimeline();
    };
    const zoom = (factor, center = (from + to) / 2) => look(center - (center - from) * factor, center + (to - center) * factor);
    jumpTo = (phase) => {
      const jump = time.jumps.find(({ name }) => name === phase);
      if (phase === "all" || !jump) { look(0, time.length); return; }
      const margin = 0.03 * (jump.end - jump.start);
      look(jump.start - margin, jump.end + margin);
    };
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey && document.activeElement !== canvas) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, at(event.offsetX));
    }, { passive: false });
    let grabbed = null;
    canvas.addEventListener("pointerdown", (event) => { grabbed = { x: event.clientX, from, to }; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", () => { grabbed = null; });
    canvas.addEventListener("pointermove", (event) => {
      if (grabbed) {
        const moved = ((event.clientX - grabbed.x) / (width - LABELS)) * (grabbed.to - grabbed.from);
        look(grabbed.from - moved, grabbed.to - moved);
        return;
      }
      const track = tracks.find((t) => event.offsetY >= t.y && event.offsetY <= t.y + t.h);
      const when = at(event.offsetX), slack = (to - from) / (width - LABELS);
      if (!track) { hideTip(); return; }
      for (let i = firstVisible(track); i < track.count && track.start[i] <= when + slack; i++) {
        if (track.end[i] + slack < when) continue;
        const kind = track.kind === "kernel" ? ` (${time.classes[track.cls[i]]})` : "";
        showTip(`${time.names[track.name[i]]}${kind}\n${ms((track.end[i] - track.start[i]) / 1e6)}, starts at ${ms(track.start[i] / 1e6)}`, event.clientX, event.clientY);
        return;
      }
      hideTip();
    });
    canvas.addEventListener("pointerleave", hideTip);
    canvas.addEventListener("dblclick", (event) => zoom(0.4, at(event.offsetX)));
    canvas.addEventListener("keydown", (event) => {
      const span = to - from;
      if (event.key === "ArrowRight") look(from + span / 8, to + span / 8);
      else if (event.key === "ArrowLeft") look(from - span / 8, to - span / 8);
      else if (event.key === "+" || event.key === "=") zoom(0.7);
      else if (event.key === "-") zoom(1.4);
      else return;
      event.preventDefault();
    });
    for (const button of document.querySelectorAll("[data-zoom]")) {
      button.addEventListener("click", () => ({ in: () => zoom(0.5), out: () => zoom(2), all: () => look(0, time.length) })[button.dataset.zoom]());
    }
    for (const { name } of time.jumps) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "plain";
      button.textContent = name === "decode" ? "Decode step" : "Prefill";
      button.addEventListener("click", () => jumpTo(name));
      $("timeline-jumps").append(button, " ");
    }
    const used = new Set(tracks.filter((t) => t.kind === "kernel").flatMap((t) => [...new Set(t.cls)]));
    for (const index of [...used].sort()) {
      const item = document.createElement("li"), key = document.createElement("span");
      key.className = "key";
      key.style.background = `var(--c-${time.classes[index].replace(" ", "-")})`;
      item.append(key, time.classes[index]);
      $("timeline-legend").append(item);
    }
    readColors();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColors(); redrawTimeline(); });
    new ResizeObserver(redrawTimeline).observe(canvas);
  }

  /* flame graphs: a bar clicked fills the width, those beside it leave it */
  for (const flame of document.querySelectorAll(".flame")) {
    const bars = [...flame.children].map((bar) => ({ bar, left: +bar.dataset.l, width: +bar.dataset.w }));
    const all = flame.closest("details").querySelector(".flame-all");
    const show = (left, width) => {
      for (const one of bars) {
        const from = Math.max(one.left, left), to = Math.min(one.left + one.width, left + width);
        one.bar.hidden = to - from <= width / 5000;
        one.bar.style.left = `${100 * (from - left) / width}%`;
        one.bar.style.width = `${100 * (to - from) / width}%`;
      }
      all.hidden = width >= 100;
    };
    for (const one of bars) one.bar.addEventListener("click", () => show(one.left, one.width));
    all.addEventListener("click", () => show(0, 100));
  }

  /* phase switch */
  const choose = (phase) => {
    body.dataset.phase = phase;
    redrawKernels();
    jumpTo(phase);
  };
  for (const input of document.querySelectorAll("#phase-switch input")) input.addEventListener("change", () => choose(input.value));
  choose(document.querySelector("#phase-switch input:checked").value);
  addEventListener("beforeprint", () => { for (const one of document.querySelectorAll("details")) one.open = true; });
  window.reportReadyMs = performance.now();
})();
