/* Kernels: sorted, filtered, in the columns chosen; a row opens to everything that is known of its kernel. */
const kernelTable = $("kernel-table");
let redrawKernels = () => {};
let showKernel = () => {};
if (kernelTable) {
  const { rows, totals, units, fields, details, steps } = data.kernels;
  const PAGE = 60, WIDE = 1700, FEWEST = 9;
  const headings = [...kernelTable.querySelectorAll("thead th")];
  let column = "time", down = true, limit = PAGE;
  let opened = null;
  /* kernels of an unknown phase are shown over the whole capture */
  const phase = () => (totals[body.dataset.phase] === null ? "all" : body.dataset.phase);
  const times = () => (body.dataset.per === "request" && phase() !== "all" ? steps[phase()] || 1 : 1);
  const place = new Map(fields.map((name, index) => [name, index]));
  const field = (r, name) => r[place.get(name)];
  const scaledBy = (v) => (v === null ? null : v * times());
  const time = (r) => scaledBy(field(r, "time_" + phase()));
  const share = (r) => (time(r) === null || !totals[phase()] ? null : field(r, "time_" + phase()) / totals[phase()]);
  const byPhase = {
    time, share, launches: (r) => scaledBy(field(r, "launches_" + phase())), module: (r) => field(r, "module_" + phase()),
  };
  const value = (key) => byPhase[key] || ((r) => field(r, key));
  const unit = { time: "ms", share: "share", launches: "launches", ...units };
  const text = {
    ms, share: percent, launches: (v) => (v >= 1000 || Number.isInteger(v) ? group(v.toFixed(0)) : digits(v)),
    us: (v) => ms(v / 1e3), "%": (v) => digits(v) + " %", "B/s": (v) => digits(v / 1e9) + " GB/s", "FLOP/s": (v) => scaled(v, "FLOP/s"),
    B: bytes, count: (v) => (Number.isInteger(v) ? group(String(v)) : digits(v)),
  };
  /* one unit and the same decimal places in a column: those of its largest value */
  const SCALES = { ms: [[1e3, " s"], [1, " ms"], [1e-3, " µs"]], us: [[1e6, " s"], [1e3, " ms"], [1, " µs"]], "B/s": [[1e9, " GB/s"]], share: [[1e-2, " %"]], "%": [[1, " %"]] };
  let scales = {};
  const fixed = (v, places) => (v !== 0 && Math.abs(v) < 0.5 * 10 ** -places ? "< " + (10 ** -places).toFixed(places) : v.toFixed(places).replace(/^\d+/, group));
  const scaleOf = (key, shown) => {
    const largest = Math.max(0, ...shown.map((r) => Math.abs(value(key)(r) || 0)));
    const sizes = SCALES[unit[key]];
    const [size, name] = sizes.find(([least]) => largest >= least) || sizes[sizes.length - 1];
    const whole = largest ? Math.floor(Math.log10(largest / size)) + 1 : 1;
    return { size, name, places: Math.min(Math.max(4 - whole, 0), 2) };
  };
  const shownText = (key, r) => {
    const v = value(key)(r);
    if (v === null || v === undefined || v === "") return "—";
    const scale = scales[key];
    if (scale) return fixed(v / scale.size, scale.places) + scale.name;
    return unit[key] ? text[unit[key]](v) : String(v);
  };

  /* columns: the first ones, all of them on a wide screen, or those chosen */
  const firstChoice = () => headings.filter((th) => th.dataset.first || innerWidth >= WIDE).map((th) => th.dataset.col);
  let columns = state.has("cols") ? state.get("cols").split(".") : firstChoice();
  columns = headings.map((th) => th.dataset.col).filter((key) => key === "name" || columns.includes(key));
  const menu = $("kernel-columns");
  for (const th of headings) {
    if (th.dataset.col === "name") continue;
    const box = make("input");
    box.type = "checkbox";
    box.checked = columns.includes(th.dataset.col);
    box.dataset.col = th.dataset.col;
    box.addEventListener("change", () => {
      const wanted = new Set(columns);
      if (box.checked) wanted.add(th.dataset.col);
      else wanted.delete(th.dataset.col);
      columns = headings.map((h) => h.dataset.col).filter((key) => wanted.has(key));
      remember({ cols: columns.join(".") });
      redrawKernels();
    });
    menu.append(make("label", "", box, " " + th.textContent.trim()));
  }

  const detailOf = (r) => {
    const cell = make("td", ""), code = make("code", "", field(r, "full") || field(r, "name"));
    cell.colSpan = columns.length;
    const copy = make("button", "plain tiny", "Copy name");
    copy.type = "button";
    copy.addEventListener("click", () => copyText(code.textContent, copy));
    cell.append(make("p", "", code, " ", copy));
    if (value("module")(r)) cell.append(make("p", "small", "Launched by: " + value("module")(r)));
    if (field(r, "generated")) {
      cell.append(make("p", "small", "Written by torch.compile: ", make("span", "src", field(r, "generated"))));
    }
    const groups = make("div", "known");
    for (const [heading, lines] of details[rows.indexOf(r)] || []) {
      const list = make("dl", "");
      for (const [name, said] of lines) list.append(make("dt", "", name), make("dd", "", said));
      groups.append(make("div", lines.some(([, said]) => said.length > 60) ? "words" : "", make("h4", "", heading), list));
    }
    if (groups.childNodes.length) cell.append(groups);
    else cell.append(make("p", "small muted", "ncu did not measure this kernel."));
    return make("tr", "full", cell);
  };
  const open = (r, tr) => {
    tr.querySelector(".kname").setAttribute("aria-expanded", "true");
    tr.after(detailOf(r));
    opened = r;
  };
  const nameCell = (r, tr) => {
    /* a name that is cut keeps its end, which is where similar names differ */
    const name = field(r, "name"), at = name.length > 24 ? name.length - 12 : name.length;
    const button = make("button", "kname mono", make("span", "start", name.slice(0, at)), make("span", "end", name.slice(at)));
    button.title = name;
    button.type = "button";
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", () => {
      const isOpen = button.getAttribute("aria-expanded") === "true";
      if (!isOpen) { open(r, tr); return; }
      button.setAttribute("aria-expanded", "false");
      tr.nextSibling.remove();
      opened = null;
    });
    return make("td", "", button);
  };
  const cellOf = (key, r) => {
    const said = shownText(key, r), td = make("td", unit[key] ? "num" : "");
    if (key === "class") {
      const dot = make("span", "dot");
      dot.style.background = `var(--c-${said.replace(" ", "-")})`;
      td.append(dot);
    }
    td.append(said);
    if (said === "—") td.classList.add("none");
    else if (key === "roof") {
      const fill = make("i"), meter = make("span", "meter", fill);
      meter.setAttribute("aria-hidden", "true");
      fill.style.width = Math.min(100, value(key)(r)) + "%";
      td.append(meter);
    }
    return td;
  };
  const rowOf = (r) => {
    const tr = make("tr");
    for (const key of columns) tr.append(key === "name" ? nameCell(r, tr) : cellOf(key, r));
    return tr;
  };
  const chosen = () => {
    const wanted = $("kernel-filter").value.trim().toLowerCase(), kind = $("kernel-class").value;
    const inView = rows.filter((r) => phase() === "all" || time(r) !== null);
    const isNamed = (r) => field(r, "name").toLowerCase().includes(wanted) || (field(r, "full") || "").toLowerCase().includes(wanted);
    const kept = inView.filter((r) => (!kind || field(r, "class") === kind) && (!wanted || isNamed(r)));
    return ordered(kept, value(column), down);
  };
  /* columns that were not chosen are left out from the right until the table fits */
  let isFitted = state.has("cols");
  const fitColumns = () => {
    const box = kernelTable.parentElement;
    if (isFitted || !box.clientWidth) return;
    if (columns.length <= FEWEST || box.scrollWidth <= box.clientWidth + 1) { isFitted = true; return; }
    columns = columns.slice(0, -1);
    for (const input of menu.querySelectorAll("input")) input.checked = columns.includes(input.dataset.col);
    redrawKernels();
  };
  redrawKernels = () => {
    const kept = chosen(), shown = kept.slice(0, limit);
    for (const th of headings) {
      th.hidden = !columns.includes(th.dataset.col);
      if (th.dataset.col === column) th.setAttribute("aria-sort", down ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
    }
    scales = Object.fromEntries(columns.filter((key) => SCALES[unit[key]]).map((key) => [key, scaleOf(key, kept)]));
    const made = shown.map(rowOf);
    kernelTable.tBodies[0].replaceChildren(...made);
    const at = shown.indexOf(opened);
    if (at >= 0) open(opened, made[at]);
    const where = times() === 1 ? { all: `of ${kernelTable.dataset.place}`, prefill: "of one prefill", decode: "of one decode step" }[phase()] : `of one request (${group(digits(times()))} steps)`;
    $("kernel-count").textContent = `${group(String(kept.length))} of ${group(String(rows.length))} kernels, times ${where}`;
    $("kernel-more").hidden = kept.length <= limit;
    $("kernel-more").textContent = `Show more (${group(String(kept.length - shown.length))} left)`;
    fitColumns();
  };
  showKernel = (name) => {
    const r = rows.find((row) => field(row, "name") === name);
    if (!r) return false;
    if (phase() !== "all" && field(r, "time_" + phase()) === null) choosePhase("all");
    $("kernel-filter").value = "";
    $("kernel-class").value = "";
    limit = Math.max(limit, chosen().indexOf(r) + 1);
    opened = r;
    redrawKernels();
    const button = kernelTable.querySelector('.kname[aria-expanded="true"]');
    button.scrollIntoView({ block: "center" });
    button.focus({ preventScroll: true });
    return true;
  };

  headings.forEach((th) => th.querySelector("button").addEventListener("click", () => {
    down = column === th.dataset.col ? !down : th.classList.contains("num");
    column = th.dataset.col;
    remember({ sort: (down ? "-" : "") + column });
    redrawKernels();
  }));
  const sort = state.get("sort") || "";
  if (headings.some((th) => th.dataset.col === sort.replace("-", ""))) { down = sort.startsWith("-"); column = sort.replace("-", ""); }
  $("kernel-filter").value = state.get("filter") || "";
  $("kernel-class").value = state.get("class") || "";
  const filtered = () => {
    limit = PAGE;
    remember({ filter: $("kernel-filter").value, class: $("kernel-class").value });
    redrawKernels();
  };
  $("kernel-filter").addEventListener("input", filtered);
  $("kernel-class").addEventListener("change", filtered);
  $("kernel-more").addEventListener("click", () => { limit += 500; redrawKernels(); });

  /* all kernels kept by the filter, in the columns shown; numbers in base units (ms, µs, bytes, FLOP/s) */
  const written = (separator, quote) => {
    const head = columns.map((key) => (unit[key] ? `${key} [${unit[key]}]` : key));
    const cells = (r) => columns.map((key) => (key === "name" ? field(r, "full") || field(r, "name") : value(key)(r)));
    const line = (list) => list.map((v) => quote(v === null || v === undefined ? "" : String(v))).join(separator);
    return [line(head), ...chosen().map((r) => line(cells(r)))].join("\n") + "\n";
  };
  $("kernel-copy").addEventListener("click", (event) => copyText(written("\t", (v) => v.replace(/[\t\n]/g, " ")), event.currentTarget));
  $("kernel-csv").addEventListener("click", () => {
    /* a spreadsheet must not run a name as a formula */
    const quote = (v) => (/^[=+@]/.test(v) || /[",\n]/.test(v) ? `"${(/^[=+@]/.test(v) ? "'" : "") + v.replace(/"/g, '""')}"` : v);
    const link = make("a");
    link.href = URL.createObjectURL(new Blob([written(",", quote)], { type: "text/csv" }));
    link.download = "kernels.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}
