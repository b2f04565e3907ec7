// What is wrong with the places that Tab came to (window.sweepFocus): a list of sentences. See boxes.py.
async () => {
  const found = [];
  const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const header = document.querySelector('header');
  const at = (x, y) => document.elementFromPoint(Math.min(innerWidth - 1, Math.max(0, x)), Math.min(innerHeight - 1, Math.max(0, y)));
  const shows = (e, x, y) => { const front = at(x, y); return e.contains(front) || (front?.contains(e) && !front.contains(document.body)); };
  const seen = (e) => {
    const high = e.getBoundingClientRect().height > innerHeight * 0.6;
    return [...e.getClientRects()].some((r) => r.width && (high
      ? [0.2, 0.5, 0.8].some((part) => shows(e, r.left + r.width / 2, innerHeight * part))
      : shows(e, r.left + r.width / 2, r.top + Math.min(r.height / 2, 12))));
  };
  const covered = (e) => [...e.getClientRects()].some((r) => r.height <= innerHeight * 0.6 && header.contains(at(r.left + r.width / 2, r.top + 1)));
  // What a box around it takes of the ring: no box that scrolls, where the ring can be brought into sight.
  const cut = (e) => {
    const s = getComputedStyle(e), out = parseFloat(s.outlineWidth) + parseFloat(s.outlineOffset) - 0.5;
    const b = e.getBoundingClientRect();
    for (let a = e.parentElement; a && a !== document.body; a = a.parentElement) {
      const o = getComputedStyle(a);
      if (o.overflowX !== 'hidden' && o.overflowX !== 'clip') continue;
      const c = a.getBoundingClientRect();
      if (b.left - out < c.left || b.right + out > c.right || b.top - out < c.top || b.bottom + out > c.bottom) return a;
    }
    return null;
  };
  for (const { element: e, what, ring } of [...window.sweepFocus]) {  // a copy: each focus() below adds one
    if (!ring) found.push(`no ring around ${what}`);
    if (!e.isConnected) continue;
    e.focus({ focusVisible: true });
    if (!seen(e)) await frame();
    const clipped = e.closest('thead') && getComputedStyle(e.closest('thead')).clipPath !== 'none';
    if (clipped || !seen(e)) found.push(`out of sight: ${what}`);
    else if (!header.contains(e) && covered(e)) found.push(`under the header: ${what}`);
    else if (ring && cut(e)) found.push(`its ring is cut: ${what}`);
  }
  return [...new Set(found)];
}
