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
  .filter((e) => e.checkVisibility({{ visibilityProperty: true }}))
  .filter((e) => !window.sweepFocus.some((one) => one.element === e))
  .filter((e) => e.tagName === 'SUMMARY' || !e.closest('details:not([open])'))
  .map((e) => e.outerHTML.slice(0, 80))"""

# Where Tab came to: what had no ring, or one that a box around it cuts, what is not seen while it has the
# focus (each line of a link is a box of its own; of what is higher than the screen a part), and what the
# header covers.
WALKED = (_HERE / "walked.js").read_text()

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
