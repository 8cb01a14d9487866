/* What if: predicted times of another choice, drawn dashed on the scale of the measured ones. */
const whatIf = data.what_if;
const whatIfBox = $("what-if");
const whatIfChoices = whatIf ? [...whatIfBox.querySelectorAll("select")] : [];
const whatIfPer = { prefill: "a prefill", decode: "a token" };
const whatIfRow = () => whatIf.rows[whatIfChoices.reduce((place, select) => place * select.options.length + Number(select.value), 0)];

/* Bars of the run move together when a prediction needs a longer scale. */
function rescale(panel, share) {
  for (const bar of panel.querySelectorAll("tr:not(.predicted) .track i")) {
    bar.dataset.left = bar.dataset.left || parseFloat(bar.style.left);
    bar.dataset.width = bar.dataset.width || parseFloat(bar.style.width);
    bar.style.left = bar.dataset.left * share + "%";
    bar.style.width = bar.dataset.width * share + "%";
  }
}
function drawPrediction(panel, times) {
  const scale = Number(panel.dataset.scale), wall = Number(panel.dataset.wall);
  const isOpen = whatIfBox.open && times !== null;
  for (const row of panel.querySelectorAll("tr.predicted")) row.hidden = !isOpen;
  if (!isOpen) { rescale(panel, 1); return; }
  const [bound, low, mid, high] = times;
  const whole = Math.max(scale, high);
  rescale(panel, scale / whole);
  const steps = (body.dataset.per === "request" && data.kernels.steps[panel.dataset.of]) || 1;
  for (const [kind, value] of [["bound", bound], ["time", mid]]) {
    const row = panel.querySelector(`tr[data-predicted="${kind}"]`), bar = row.querySelector(`.track .k-predicted-${kind}`);
    bar.style.left = "0";
    bar.style.width = (100 * value) / whole + "%";
    const cells = row.querySelectorAll("td.num");
    cells[0].textContent = "≈ " + ms(steps * value);
    cells[2].textContent = wall ? digits(value / wall, 3) + "×" : "";
  }
  const band = panel.querySelector(".track .k-predicted-band");
  band.style.left = (100 * low) / whole + "%";
  band.style.width = (100 * (high - low)) / whole + "%";
}
function redrawWhatIf() {
  if (!whatIf) return;
  const [fits, times] = whatIfRow();
  const texts = [];
  for (const panel of document.querySelectorAll(".fall-panel")) {
    const found = times[whatIf.phases.indexOf(panel.dataset.of)];
    drawPrediction(panel, found);
    if (found) texts.push(`${ms(found[2])} ${whatIfPer[panel.dataset.of]} (${ms(found[1])} to ${ms(found[3])}), at least ${ms(found[0])}`);
  }
  const batch = whatIf.batches[Number($("what-if-batch").value)];
  const decode = times[whatIf.phases.indexOf("decode")];
  if (decode) texts.push(`${digits((1e3 * batch) / decode[2])} tokens/s in decode`);
  if (!texts.length) texts.push("no estimate: the peaks of this GPU are not known in this format");
  if (fits === false) texts.push("it does not fit into the memory of one device");
  $("what-if-said").textContent = "Predicted: " + texts.join("; ") + ".";
}
if (whatIf) {
  whatIfBox.hidden = false;
  const asked = (state.get("what-if") || "").split(".");
  whatIfChoices.forEach((select, place) => {
    if (asked.length === whatIfChoices.length && select.options[asked[place]]) select.value = asked[place];
    select.addEventListener("change", () => {
      remember({ "what-if": whatIfChoices.map((one) => one.value).join(".") });
      redrawWhatIf();
    });
  });
  if (asked.length === whatIfChoices.length) whatIfBox.open = true;
  $("what-if-own").addEventListener("click", () => {
    for (const select of whatIfChoices) select.value = select.dataset.own;
    remember({ "what-if": null });
    redrawWhatIf();
  });
  whatIfBox.addEventListener("toggle", redrawWhatIf);
  redrawWhatIf();
}
