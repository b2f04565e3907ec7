// Before Tab is pressed for the first time: each element that it comes to is noted. See boxes.py.
() => {
  window.sweepFocus = [];
  document.addEventListener('focusin', (event) => {
    const e = event.target, s = getComputedStyle(e), b = e.getBoundingClientRect();
    window.sweepFocus.push({
      what: `${e.tagName.toLowerCase()}${e.id ? '#' + e.id : ''} "${(e.textContent || e.getAttribute('aria-label') || e.name || '').trim().slice(0, 40)}"`,
      ring: s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2 && s.outlineColor !== s.backgroundColor,
      element: e,
    });
  });
}
