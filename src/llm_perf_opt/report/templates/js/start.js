/* Phase, and whether times are of a step or of a whole request. */
const switched = (name, value) => {
  const input = document.querySelector(`input[name="${name}"][value="${value}"]`);
  if (input) input.checked = true;
  return input !== null;
};
function choosePhase(phase) {
  switched("phase", phase);
  body.dataset.phase = phase;
  remember({ phase });
  redrawKernels();
  jumpTo(phase);
}
for (const input of document.querySelectorAll('input[name="phase"]')) input.addEventListener("change", () => choosePhase(input.value));
for (const input of document.querySelectorAll('input[name="per"]')) {
  input.addEventListener("change", () => {
    body.dataset.per = input.value;
    remember({ per: input.value });
    redrawKernels();
    redrawWhatIf();
  });
}
if (state.has("per") && switched("per", state.get("per"))) body.dataset.per = state.get("per");
if (state.has("phase") && switched("phase", state.get("phase"))) body.dataset.phase = state.get("phase");
redrawKernels();
redrawWhatIf();
startTimeline();
addEventListener("beforeprint", () => redrawTimeline());
if (anchor() && state.size) goTo(anchor().slice(1));
window.reportReadyMs = performance.now();
