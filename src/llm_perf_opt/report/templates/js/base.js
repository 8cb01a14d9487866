/* Elements, data, numbers as the markdown writes them, what the address remembers, and one tooltip. */
const $ = (id) => document.getElementById(id);
const bytesOf = (base64) => {
  const text = atob(base64), found = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) found[i] = text.charCodeAt(i);
  return found;
};
const data = JSON.parse(new TextDecoder().decode(inflate(bytesOf($("data").textContent), Number($("data").dataset.bytes))));
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

const bytes = (v) => {
  for (const [name, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (Math.abs(v) >= size) return digits(v / size) + " " + name;
  return digits(v, 4) + " B";
};

const make = (tag, className, ...children) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
};

/* The choice is behind the section in the address (`#kernels?phase=decode&sort=-time`), so that a link shows the same. */
const state = new URLSearchParams(location.hash.split("?")[1] || "");
const anchor = () => location.hash.split("?")[0];
const remember = (changes) => {
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === "") state.delete(key);
    else state.set(key, value);
  }
  const text = state.toString();
  history.replaceState(null, "", (anchor() || "#") + (text ? "?" + text : ""));
};
const goTo = (id) => {
  const target = document.getElementById(id);
  if (target) target.scrollIntoView();
};
addEventListener("hashchange", () => {
  remember({});
  goTo(anchor().slice(1));
});

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

/* The clipboard, also where a page from a file may not use the new way. */
const copyText = (text, button) => {
  const said = button.textContent;
  const done = (word) => { button.textContent = word; setTimeout(() => { button.textContent = said; }, 1500); };
  const old = () => {
    const area = make("textarea");
    area.value = text;
    body.append(area);
    area.select();
    const worked = document.execCommand("copy");
    area.remove();
    done(worked ? "Copied" : "Not allowed here");
  };
  if (navigator.clipboard) navigator.clipboard.writeText(text).then(() => done("Copied"), old);
  else old();
};
