/* Roofline: one tab stop, arrows walk from left to right; a click or Enter goes to the kernel's row. */
const dots = [...document.querySelectorAll("#roofline-points .p")];
if (dots.length) {
  const box = new Map(dots.map((dot) => [dot, dot.getBBox()]));
  dots.sort((a, b) => box.get(a).x - box.get(b).x);
  dots[0].tabIndex = 0;
  const go = (dot) => { if (dot && dot.dataset.kernel && showKernel(dot.dataset.kernel)) hideTip(); };
  $("roofline-points").addEventListener("click", (event) => go(event.target.closest(".p")));
  $("roofline-points").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const at = dots.indexOf(document.activeElement);
    if (event.key === "Enter" && at >= 0) { event.preventDefault(); go(dots[at]); return; }
    if (!step || at < 0) return;
    event.preventDefault();
    dots[at].tabIndex = -1;
    const next = dots[(at + step + dots.length) % dots.length];
    next.tabIndex = 0;
    next.focus();
  });
}
