"""What is wrong with a page's boxes, looked at in the browser: positions and sizes, never pixels.

Text that only assistive software reads is passed over, and what scrolls by a box of its own that the keyboard
can reach.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent
FAULTS = (_HERE / "faults.js").read_text()  # gives a list of [what, where] of the page as it stands
FOCUS = (_HERE / "focus.js").read_text()  # notes in window.sweepFocus what the Tab key comes to
_REACHED = "a[href], button, input:not([type=hidden]), select, summary, [tabindex='0']"

HOW_MANY = f"""() => [...document.querySelectorAll("{_REACHED}")]
  .filter((e) => !e.closest('dialog:not([open])'))
  .filter((e) => e.checkVisibility({{ visibilityProperty: true }})).length"""

# What Tab must come to, and has not.
MISSED = f"""() => [...document.querySelectorAll("{_REACHED}")]
  .filter((e) => !e.disabled && !e.closest('dialog:not([open])'))
  .filter((e) => e.checkVisibility({{ visibilityProperty: true }}) && !e.hasAttribute('data-sweep'))
  .filter((e) => e.tagName === 'SUMMARY' || !e.closest('details:not([open])'))
  .map((e) => e.outerHTML.slice(0, 80))"""

# Where Tab came to: what had no ring, and what is not seen while it has the focus, in its box or in front.
WALKED = """async () => {
  const found = [];
  const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  for (const { element: e, what, ring } of [...window.sweepFocus]) {  // a copy: each focus() below adds one
    if (!ring) found.push(`no ring around ${what}`);
    if (!e.isConnected) continue;
    e.focus({ focusVisible: true });
    const b = e.getBoundingClientRect();
    const x = Math.min(innerWidth - 1, Math.max(0, b.left + b.width / 2));
    const y = Math.min(innerHeight - 1, Math.max(0, b.top + Math.min(b.height / 2, 12)));
    let front = document.elementFromPoint(x, y);
    if (!e.contains(front)) { await frame(); front = document.elementFromPoint(x, y); }
    const clipped = e.closest('thead') && getComputedStyle(e.closest('thead')).clipPath !== 'none';
    const inFront = e.contains(front) || (front?.contains(e) && !front.contains(document.body));
    if (!b.width || clipped || !inFront) {
      found.push(`out of sight: ${what}`);
    }
  }
  return [...new Set(found)];
}"""

# All that is read: lines, tooltips, names for assistive software, the words of drawings.
TEXTS = """() => {
  const of = (what, read) => [...document.querySelectorAll(what)].map(read);
  return [
    ...document.body.innerText.split('\\n'),
    ...of('[title]', (e) => e.title).filter((text) => !/^sha256:[0-9a-f]{64}$/.test(text)),
    ...of('[aria-label]', (e) => e.getAttribute('aria-label')),
    ...of('svg text, svg title, svg desc, figcaption', (e) => e.textContent),
    document.title, document.getElementById('announce').textContent,
  ];
}"""
