// Keys, copying and zooming: what the pages can do beside showing. Everything here is an address or a clipboard;
// nothing is written to the cluster.

const OFF = "evalstop-keys"; // in localStorage: "off" where single keys are switched off
const dialog = document.getElementById("keys");
const allowed = document.getElementById("keys-on");

const on = () => localStorage.getItem(OFF) !== "off";
allowed.checked = on();
allowed.addEventListener("change", () => localStorage.setItem(OFF, allowed.checked ? "on" : "off"));
document.getElementById("keys-open").addEventListener("click", () => dialog.showModal());
document.getElementById("keys-close").addEventListener("click", () => dialog.close());

function go(address) {
  history.pushState(null, "", address);
  dispatchEvent(new PopStateEvent("popstate"));
}

// -- rows ------------------------------------------------------------------------------------------------------

function rows() {
  return [...document.querySelectorAll("main tbody th a, main .list li a")].filter((one) => one.offsetParent !== null);
}

function move(by) {
  const found = rows();
  if (!found.length) return;
  const at = found.indexOf(document.activeElement);
  found[Math.min(Math.max(at + by, 0), found.length - 1)].focus();
}

function find() {
  const field = document.getElementById("q");
  if (field) {
    field.focus();
    field.select();
    return;
  }
  const seen = new MutationObserver(() => {
    const made = document.getElementById("q");
    if (!made) return;
    seen.disconnect();
    made.focus();
  });
  seen.observe(document.getElementById("main"), { childList: true, subtree: true });
  go("/jobs");
}

document.addEventListener("keydown", (event) => {
  if (!on() || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || dialog.open) return;
  if (document.getElementById("main").hidden) return;
  if (event.target.closest?.("input:not([type=checkbox]), select, textarea, [contenteditable]")) return;
  const act = { "/": find, "?": () => dialog.showModal(), j: () => move(1), k: () => move(-1) }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

// -- copying ---------------------------------------------------------------------------------------------------

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("button.copy");
  if (!button) return;
  let word = "Copied";
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
  } catch {
    // Over plain HTTP on another host there is no clipboard: what is to be copied is marked for the keyboard.
    getSelection().selectAllChildren(button.previousElementSibling);
    word = "Marked: press Ctrl+C";
  }
  button.textContent = word;
  document.getElementById("announce").textContent = word;
  setTimeout(() => { button.textContent = "Copy"; }, 2500);
});

// -- zooming: a drag over a chart is an address ----------------------------------------------------------------

let drag = null;

function stepAt(svg, x) {
  const box = svg.getBoundingClientRect();
  const { left, right, first, last } = svg.dataset;
  const share = ((x - box.x) / box.width - left) / (right - left);
  return Math.round(Number(first) + Math.min(1, Math.max(0, share)) * (last - first));
}

document.addEventListener("pointerdown", (event) => {
  const svg = event.target.closest?.(".chartbox[data-zoom] svg.chart");
  if (svg && event.button === 0 && event.pointerType === "mouse") drag = { svg, from: event.clientX };
});

document.addEventListener("pointerup", (event) => {
  const was = drag;
  drag = null;
  if (!was || Math.abs(event.clientX - was.from) < 12) return;
  const [first, last] = [stepAt(was.svg, was.from), stepAt(was.svg, event.clientX)].sort((a, b) => a - b);
  if (last <= first) return;
  const query = new URLSearchParams(location.search);
  query.set("from", String(first));
  query.set("to", String(last));
  getSelection().removeAllRanges();
  go(`${location.pathname}?${query}`);
});

// -- times: the text is UTC, the tooltip has the viewer's own too ------------------------------------------------

const local = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

for (const kind of ["pointerover", "focusin"]) {
  document.addEventListener(kind, (event) => {
    const time = event.target.closest?.("time");
    if (!time || time.title.includes("here")) return;
    time.title = `${time.title} (${local.format(new Date(time.dateTime))} here)`;
  });
}
