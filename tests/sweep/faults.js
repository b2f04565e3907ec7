// What is wrong with a page's boxes: a list of [what, where]. See boxes.py.
() => {
  const found = [];
  const SPARE = 1.5;  // px, of rounding
  const tell = (what, element, more) => {
    const words = (element.textContent || element.getAttribute?.('aria-label') || '').trim().replace(/\s+/g, ' ').slice(0, 70);
    found.push([what, `${element.tagName.toLowerCase()}${element.id ? '#' + element.id : ''}.${element.getAttribute?.('class') ?? ''} "${words}" ${more ?? ''}`]);
  };
  const box = (r) => `[${Math.round(r.left)},${Math.round(r.top)} ${Math.round(r.width)}×${Math.round(r.height)}]`;
  const style = new Map();
  const css = (e) => { let s = style.get(e); if (!s) style.set(e, s = getComputedStyle(e)); return s; };
  const hidden = (e) => { for (let a = e; a && a !== document.body; a = a.parentElement) if (css(a).clipPath !== 'none') return a; return null; };
  const unseen = (e) => e.closest('.unseen, .skip, title, desc, defs, noscript, dialog:not([open]), option') || hidden(e);
  const wide = document.documentElement.clientWidth;

  // Around a text: what scrolls (and so shows all of it), what cuts, and what only holds it.
  const scroller = (e) => {
    for (let a = e; a && a !== document.body; a = a.parentElement) {
      const o = css(a).overflowX;
      if ((o === 'auto' || o === 'scroll') && a.scrollWidth > a.clientWidth + 1) return a;
    }
    return null;
  };
  const rectsOf = (node) => { const r = document.createRange(); r.selectNodeContents(node); return [...r.getClientRects()].filter((b) => b.width > 0.5 && b.height > 0.5); };

  const texts = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode, element = node.parentElement;
    if (!node.data.trim() || unseen(element) || !element.checkVisibility({ visibilityProperty: true })) continue;
    const rects = rectsOf(node);
    if (!rects.length) continue;
    const inner = scroller(element);
    let cut = null, cutBy = null;
    for (let a = element; a && a !== document.documentElement; a = a.parentElement) {
      const s = css(a);
      if (s.display === 'inline' || a.namespaceURI !== 'http://www.w3.org/1999/xhtml') continue;
      if (a === inner) break;
      const b = a.getBoundingClientRect();
      const out = rects.find((r) => r.right > b.right + SPARE || r.left < b.left - SPARE);
      if (!out) continue;
      if (s.overflowX === 'hidden' || s.overflowX === 'clip') {
        if (s.textOverflow === 'ellipsis') { if (!a.closest('[title]')) tell('cut, and nothing says the whole', a); cut = a; break; }
        if (a !== document.body) { cut = a; tell('cut without ellipsis', element, box(out)); break; }
      }
      if (!cutBy) cutBy = [a, out, b];
    }
    if (!cut && cutBy) tell('text outside of its box', element, `${box(cutBy[1])} of ${cutBy[0].tagName.toLowerCase()}.${cutBy[0].className} ${box(cutBy[2])}`);
    const svg = element.closest('svg');
    if (svg) {
      const b = svg.getBoundingClientRect();
      const out = rects.find((r) => r.right > b.right + SPARE || r.left < b.left - SPARE || r.top < b.top - SPARE || r.bottom > b.bottom + SPARE);
      if (out) tell('text outside of its drawing', element, `${box(out)} of ${box(b)}`);
    }
    if (inner) {
      if (inner.tabIndex < 0) tell('scrolls, and no key can', inner);
    } else {
      const out = rects.find((r) => r.right > wide + SPARE || r.left < -SPARE);
      if (out && !cut) tell('outside of the page', element, box(out));
    }
    for (const r of rects) texts.push({ node, element, cut, left: r.left, right: r.right, top: r.top, bottom: r.bottom });
  }

  // No text lies on another. By rising tops; those that are cut show no more than their box does.
  for (const t of texts) {
    if (t.cut) { const b = t.cut.getBoundingClientRect(); t.left = Math.max(t.left, b.left); t.right = Math.min(t.right, b.right); }
    for (let a = t.element; a && a !== document.body; a = a.parentElement) {
      const s = css(a);
      if (s.overflowX === 'auto' || s.overflowX === 'scroll' || s.overflowX === 'hidden') {
        const b = a.getBoundingClientRect();
        t.left = Math.max(t.left, b.left); t.right = Math.min(t.right, b.right);
      }
    }
  }
  const fixed = (e) => { for (let a = e; a && a !== document.body; a = a.parentElement) if (['sticky', 'fixed'].includes(css(a).position)) return a; return null; };
  texts.sort((a, b) => a.top - b.top);
  const most = 6;
  let over = 0;
  for (let i = 0; i < texts.length && over < most; i += 1) {
    const a = texts[i];
    for (let j = i + 1; j < texts.length && texts[j].top < a.bottom - 2; j += 1) {
      const b = texts[j];
      if (a.node === b.node) continue;
      const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const y = Math.min(a.bottom, b.bottom) - b.top;
      if (x > 2 && y > 3 && fixed(a.element) === fixed(b.element)) {
        tell('texts overlap', a.element, `and "${b.node.data.trim().slice(0, 40)}" by ${x.toFixed(0)}×${y.toFixed(0)}`);
        over += 1;
        break;
      }
    }
  }

  // Boxes that are no text: within the page, and no control on another one or on a text of somebody else.
  const controls = [...document.querySelectorAll('button, input:not([type=hidden]), select, summary')].filter((e) => !unseen(e) && e.checkVisibility({ visibilityProperty: true }) && e.getBoundingClientRect().width > 2);
  for (const e of [...controls, ...document.querySelectorAll('svg, img, table, .card, .tile, .badge')]) {
    if (unseen(e) || !e.checkVisibility()) continue;
    const b = e.getBoundingClientRect();
    if (b.width && (b.right > wide + SPARE || b.left < -SPARE) && !scroller(e.parentElement)) tell('outside of the page', e, box(b));
  }
  for (const e of controls) {
    if (fixed(e)) continue;
    const b = e.getBoundingClientRect();
    for (const t of texts) {
      if (e.contains(t.node) || fixed(t.element) || t.element.tagName === 'OPTION') continue;
      if (Math.min(b.right, t.right) - Math.max(b.left, t.left) > 2 && Math.min(b.bottom, t.bottom) - Math.max(b.top, t.top) > 3) { tell('control over a text', e, `"${t.node.data.trim().slice(0, 40)}"`); break; }
    }
    for (const o of controls) {
      if (o === e || fixed(o)) continue;
      const c = o.getBoundingClientRect();
      if (Math.min(b.right, c.right) - Math.max(b.left, c.left) > 2 && Math.min(b.bottom, c.bottom) - Math.max(b.top, c.top) > 2) { tell('control over a control', e, o.outerHTML.slice(0, 60)); break; }
    }
    if (e.tagName === 'SELECT' || e.tagName === 'INPUT') continue;
    if (e.scrollWidth > e.clientWidth + 2 && css(e).overflowX !== 'visible') tell('cut without ellipsis', e);
  }

  // Labels that a style sheet writes before a cell of a card: they stand beside it, in no more lines than it has.
  const pen = document.createElement('canvas').getContext('2d');
  for (const cell of document.querySelectorAll('table.cards [data-label]')) {
    const s = getComputedStyle(cell, '::before');
    if (s.position !== 'absolute' || s.content === 'none') continue;
    pen.font = `${s.fontWeight} ${s.fontSize} ${s.fontFamily}`;
    const lines = Math.ceil(pen.measureText(cell.dataset.label).width / parseFloat(s.width));
    if (lines * parseFloat(s.lineHeight) > cell.getBoundingClientRect().height + 3) tell('label longer than its row', cell, cell.dataset.label);
  }

  // A table shows all of its columns: what can be scrolled to is still not seen.
  for (const box of document.querySelectorAll('.scroll')) {
    if (!box.checkVisibility() || unseen(box) || box.scrollWidth <= box.clientWidth + 1) continue;
    const edge = box.getBoundingClientRect().right;
    const cut = [...box.querySelectorAll('thead th')].filter((e) => e.getBoundingClientRect().right > edge + 1).map((e) => e.textContent.trim());
    tell('columns cut', box, `${cut.join(', ')}: ${box.scrollWidth} of ${box.clientWidth} px`);
  }

  // What is not told by boxes alone.
  const row = document.querySelector('table.jobs tbody tr');
  if (row && innerWidth <= 720 && matchMedia('screen').matches) {
    const table = document.querySelector('table.jobs'), rows = table.tBodies[0].rows.length;
    const each = table.tBodies[0].getBoundingClientRect().height / rows;
    if (each > 210) tell('a list as long as a book', table, `${Math.round(each)} px a row`);
  }
  const brand = document.querySelector('header .brand'), title = document.querySelector('main h1, #signin:not([hidden]) h1');
  const main = document.getElementById('main');
  if (brand?.checkVisibility() && main?.checkVisibility() && main.querySelector('h1')) {
    const off = brand.getBoundingClientRect().left - main.querySelector('article').getBoundingClientRect().left;
    if (Math.abs(off) > 1) tell('header beside the page', brand, `${off.toFixed(1)} px`);
  }
  if (!title) tell('no heading', document.body);
  const article = document.querySelector('main article');
  if (article && main.checkVisibility()) {
    const empty = !article.querySelector('table, svg.chart, .list li, .card dl, .card figure');
    if (empty && !article.querySelector('a[href], code')) tell('empty, and no next step', article);
  }
  return found;
}
