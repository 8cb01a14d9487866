/* flame graphs: a bar clicked fills the width, its siblings are hidden */
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
