// The page: fetches views with the token, follows them, and keeps focus, scroll and open parts while they change.
// Without a framework and without a build: this file is what is served.

const POLL = 2000; // ms between looks while the page is seen
const HANDED = 400; // ms in which another tab hands over its key
const KEY = "evalstop-token";
const main = document.getElementById("main");
const signin = document.getElementById("signin");
const announce = document.getElementById("announce");
const live = document.getElementById("live");
const signedIn = document.body.dataset.signedIn === "yes";

let etag = "";
let shown = ""; // address of the view that is shown
let serial = 0; // of the newest request for another page: answers to older ones are dropped
let timer = 0;
let asking = new AbortController(); // gives up the newest request once another page is wanted

// -- the token: given once in the address' fragment, which no server sees, then kept by this tab --------------

function takeKey() {
  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  if (given) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, "", location.pathname + location.search);
  }
}

// Another tab of this origin that has the key hands it over: nothing is stored, and no cookie is made, which every
// server on this host would get.
const tabs = "BroadcastChannel" in window ? new BroadcastChannel("evalstop-key") : null;

tabs?.addEventListener("message", ({ data }) => {
  const key = sessionStorage.getItem(KEY);
  if (data?.asks && key) tabs.postMessage({ key });
});

function keyOfAnotherTab() {
  if (!tabs) return Promise.resolve();
  return new Promise((resolve) => {
    const done = ({ data }) => {
      if (data?.key && !sessionStorage.getItem(KEY)) sessionStorage.setItem(KEY, data.key);
      if (!data || data.key) {
        tabs.removeEventListener("message", done);
        resolve();
      }
    };
    tabs.addEventListener("message", done);
    tabs.postMessage({ asks: true });
    setTimeout(() => done({}), HANDED);
  });
}

function authorization() {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

function askForToken(problem) {
  clearTimeout(timer);
  sessionStorage.removeItem(KEY);
  main.hidden = true;
  signin.hidden = false;
  state("", "signed out");
  document.title = "Sign in · EvalStop";
  document.getElementById("signin-problem").textContent = problem;
  document.getElementById("token").focus();
}

signin.addEventListener("submit", (event) => {
  event.preventDefault();
  const field = document.getElementById("token");
  sessionStorage.setItem(KEY, field.value.trim());
  field.value = "";
  signin.hidden = true;
  main.hidden = false;
  load({ focus: true });
});

// -- views -----------------------------------------------------------------------------------------------------

function address() {
  const query = new URLSearchParams(location.search);
  query.set("width", String(main.clientWidth || innerWidth));
  return `/view${location.pathname}?${query}`;
}

async function load({ focus = false, again = false } = {}) {
  if (!signedIn && !sessionStorage.getItem(KEY)) {
    askForToken("");
    return;
  }
  clearTimeout(timer);
  const mine = again ? serial : ++serial;
  const wanted = address();
  const headers = authorization();
  if (again && etag && wanted === shown) headers["If-None-Match"] = etag;
  if (!again) {
    asking.abort();
    asking = new AbortController();
  }
  let response, text;
  try {
    response = await fetch(wanted, { headers, cache: "no-store", credentials: "same-origin", signal: asking.signal });
    text = await response.text();
  } catch {
    if (mine === serial) {
      state("off", "no answer; trying again");
      next(2);
    }
    return;
  }
  if (mine !== serial) return;
  if (response.status === 401) {
    askForToken("The token is not accepted: it is wrong, or it has expired.");
    return;
  }
  if (response.status !== 304) {
    show(text, { focus, first: wanted.split("?")[0] !== shown.split("?")[0] });
    etag = response.ok ? response.headers.get("ETag") || "" : "";
    shown = wanted;
  }
  const old = main.querySelector("article")?.dataset.stale;
  if (response.status >= 400) state("off", "not available");
  else state(old ? "off" : "on", old ? "stale" : "live");
  next(1);
}

function next(times) {
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(() => load({ again: true }), POLL * times);
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !main.hidden) load({ again: true });
  else if (document.hidden) state("", "paused");
});

function state(kind, words) {
  live.dataset.state = kind;
  if (live.textContent !== words) live.textContent = words;
}

function show(text, { focus, first }) {
  const made = new DOMParser().parseFromString(text, "text/html").body.firstElementChild;
  if (!made) return;
  times(made);
  const held = main.querySelector("article");
  if (held && !first) morph(held, made, !focus);
  else main.replaceChildren(document.importNode(made, true));
  const article = main.querySelector("article");
  document.title = `${article.dataset.title} · EvalStop`;
  if (announce.textContent !== article.dataset.announce) announce.textContent = article.dataset.announce;
  for (const link of document.querySelectorAll("header nav a")) {
    const path = link.getAttribute("href");
    const here = path === "/" ? location.pathname === "/" : location.pathname.startsWith(path);
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (focus) {
    scrollTo(0, 0);
    main.querySelector("h1")?.focus({ preventScroll: true });
  }
  for (const box of main.querySelectorAll(".chartbox")) point(box, Number(box.dataset.at ?? -1));
}

// Changes `from` into `to` in place: what is the same stays the same element, so focus, selection, scroll and
// opened details stay. Children are matched by id or data-key, else by place.
function morph(from, to, mark) {
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && !(name === "open" || name === "data-at" || name === "data-fresh")) from.removeAttribute(name);
  }
  for (const { name, value } of [...to.attributes]) {
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  const known = new Map();
  for (const child of from.children) if (keyOf(child)) known.set(keyOf(child), child);
  let at = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    const key = wanted.nodeType === 1 ? keyOf(wanted) : "";
    let match = key ? known.get(key) : at;
    if (match && key && match.tagName !== wanted.tagName) match = undefined;
    const fits = match && match.nodeType === wanted.nodeType && match.nodeName === wanted.nodeName && (key || match.nodeType !== 1 || !keyOf(match));
    if (!fits) {
      const fresh = document.importNode(wanted, true);
      if (mark && key && fresh.dataset) fresh.dataset.fresh = "";
      from.insertBefore(fresh, at);
      continue;
    }
    if (match !== at) from.insertBefore(match, at);
    else at = at.nextSibling;
    if (match.nodeType === 1) {
      if (match.namespaceURI !== "http://www.w3.org/1999/xhtml") {
        if (!match.isEqualNode(wanted)) match.replaceWith(document.importNode(wanted, true));
      } else morph(match, wanted, mark);
    } else if (match.data !== wanted.data) match.data = wanted.data;
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function keyOf(element) {
  return element.id || element.dataset?.key || "";
}

// -- times: how long ago, told here, so that the server's answer changes only when something happened ----------

const ago = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "short" });

function times(root) {
  for (const element of root.querySelectorAll("time")) {
    const seconds = (new Date(element.dateTime) - Date.now()) / 1000;
    const size = Math.abs(seconds);
    const [unit, length] = size < 90 ? ["second", 1] : size < 5400 ? ["minute", 60] : size < 129600 ? ["hour", 3600] : ["day", 86400];
    const words = size < 5 ? "now" : ago.format(Math.round(seconds / length), unit);
    if (element.textContent !== words) element.textContent = words;
  }
}

setInterval(() => times(main), 5000);

// -- links and forms stay on this page -------------------------------------------------------------------------

function go(url, { replace = false, focus = true } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", url);
  load({ focus });
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button !== 0) return;
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || url.hash || url.pathname.startsWith("/static/")) return;
  event.preventDefault();
  go(url.pathname + url.search);
});

addEventListener("popstate", () => load({ focus: true }));

function sent(form, only) {
  const query = new URLSearchParams();
  for (const [name, value] of new FormData(form)) {
    if (typeof value === "string" && (value !== "" || form.dataset.whatIf !== undefined) && (!only || only.includes(name))) query.append(name, value);
  }
  const text = query.toString();
  return form.getAttribute("action") + (text ? `?${text}` : "");
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (signin.contains(form)) return;
  event.preventDefault();
  go(sent(form), { focus: false });
});

document.addEventListener("input", (event) => {
  const form = event.target.form;
  // At once: what was asked for before is given up, so its answer cannot take back what was typed since.
  if (form?.dataset.live !== undefined) go(sent(form), { replace: true, focus: false });
});

document.addEventListener("change", (event) => {
  // Another rule has other parameters: the form is asked for anew, with that rule's own.
  if (event.target.id === "if-rule") go(sent(event.target.form, ["rule"]), { replace: true, focus: false });
});

// -- charts: points can be read by keyboard and by pointer ------------------------------------------------------

function points(box) {
  return [...box.querySelectorAll('g[id$="pts-score"] use')];
}

function point(box, at) {
  const drawn = points(box);
  const rows = document.getElementById(box.dataset.rows)?.tBodies[0]?.rows ?? [];
  if (at < 0 || at >= rows.length) return;
  box.dataset.at = String(at);
  for (const one of box.querySelectorAll("use.on")) one.classList.remove("on");
  for (const id of ["score", "proxy"]) box.querySelectorAll(`g[id$="pts-${id}"] use`)[at]?.classList.add("on");
  if (!drawn.length) return;
  const heads = [...rows[at].closest("table").tHead.rows[0].cells].map((cell) => cell.textContent);
  const said = [...rows[at].cells].map((cell, n) => [heads[n], cell.textContent.trim()]).filter(([, value]) => value && value !== "–");
  const words = said.map(([head, value]) => `${head} ${value}`).join(", ");
  const readout = box.querySelector(".readout");
  if (readout.textContent !== words) readout.textContent = words;
}

document.addEventListener("keydown", (event) => {
  const box = event.target.closest?.(".chartbox");
  if (!box || event.target !== box) return;
  const last = points(box).length - 1;
  const at = Number(box.dataset.at ?? -1);
  const to = { ArrowRight: at + 1, ArrowLeft: at < 0 ? last : at - 1, Home: 0, End: last }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  point(box, Math.min(Math.max(to, 0), last));
});

document.addEventListener("pointermove", (event) => {
  const box = event.target.closest?.(".chartbox");
  if (!box) return;
  let best = -1;
  let least = Infinity;
  points(box).forEach((one, at) => {
    const where = one.getBoundingClientRect();
    const gap = Math.abs(where.x + where.width / 2 - event.clientX);
    if (gap < least) [best, least] = [at, gap];
  });
  point(box, best);
});

// -- theme -------------------------------------------------------------------------------------------------------

const themes = ["", "light", "dark"];
const button = document.getElementById("theme");

function theme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  button.setAttribute("aria-label", `Theme: ${name || "automatic"}`);
  button.title = button.getAttribute("aria-label");
  button.textContent = { light: "☀", dark: "☾" }[name] ?? "◐";
}

button.addEventListener("click", () => {
  const name = themes[(themes.indexOf(localStorage.getItem("evalstop-theme") ?? "") + 1) % themes.length];
  localStorage.setItem("evalstop-theme", name);
  theme(name);
});

let resizing = 0;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => !main.hidden && load({ again: true }), 300);
});

theme(localStorage.getItem("evalstop-theme") ?? "");
takeKey();
if (!signedIn && !sessionStorage.getItem(KEY)) await keyOfAnotherTab();
load({ focus: false });
