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
