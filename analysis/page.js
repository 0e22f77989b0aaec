// What a report does beyond its HTML: themes, sorted tables, charts, differences of two runs.
// Without it the page has its pictures, and its tables in the order in which they were written.
"use strict";
const all = (query, within = document) => [...within.querySelectorAll(query)];
const make = (tag, attributes = {}, parent = null, text = null) => {
  const svg = ["svg", "path", "line", "text", "rect", "g", "clipPath", "circle"].includes(tag);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null) made.textContent = text;
  if (parent) parent.append(made);
  return made;
};
const button = (text, pressed, parent, act) => {
  const made = make("button", {type: "button", "aria-pressed": pressed}, parent, text);
  made.onclick = () => made.setAttribute("aria-pressed", String(act()));
  return made;
};
const coarse = (value, digit) => {  // no finer than the digit that the log tells
  if (!digit || value === null || value === undefined) return shown(value);
  const rounded = Math.round(value / digit) * digit;
  return rounded ? shown(rounded) : `under ${shown(digit)}`;
};
const shown = value => value === null || value === undefined ? "–"
  : Math.abs(value) >= 1000 && Math.abs(value) < 1e6 ? Math.round(value).toLocaleString("en")
    : String(Number(value.toPrecision(4)));

// The theme: the system's until the switch is used.
all(".theme").forEach(it => {
  it.hidden = false;
  it.onclick = () => {
    const dark = getComputedStyle(document.documentElement).getPropertyValue("--dark").trim();
    document.documentElement.dataset.theme = dark === "1" ? "light" : "dark";
  };
});

// A click on a column's title sorts by it.
all(".hint").forEach(hint => { hint.hidden = false; });
all("th button").forEach(it => {
  it.onclick = () => {
    const head = it.parentNode, column = head.cellIndex, body = head.closest("table").tBodies[0];
    const down = head.getAttribute("aria-sort") === "ascending";
    all("th", head.parentNode).forEach(th => th.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = row => row.cells[column].dataset.sort ?? row.cells[column].innerText;
    const compare = (a, b) => a - b || a.localeCompare(b, "en", {numeric: true});
    [...body.rows].sort((a, b) => compare(value(a), value(b)) * (down ? -1 : 1))
      .forEach(row => body.append(row));
  };
});

// Scales: a value to a place from 0 to 1, and the values that are written at the axis.
const scale = (low, high, log) => {
  const f = log ? Math.log10 : value => value;
  const [a, b] = f(low) < f(high) ? [f(low), f(high)] : [f(low) - 0.5, f(high) + 0.5];
  return {at: value => (f(value) - a) / (b - a), ticks: log ? decades(a, b) : steps(a, b)};
};
const steps = (a, b) => {
  const rough = (b - a) / 5, ten = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(n => n * ten).find(it => it >= rough);
  const first = Math.ceil(a / step - 1e-9), count = Math.floor((b - a) / step + 1e-9) + 1;
  return Array.from({length: count}, (_, i) => (first + i) * step).filter(it => it <= b + 1e-9 * step);
};
const decades = (a, b) => {
  const subs = b - a < 2.5 ? [1, 2, 5] : [1], found = [];
  for (let d = Math.floor(a); d <= b; d += Math.max(1, Math.floor((b - a) / 6)))
    for (const sub of subs) found.push(sub * 10 ** d);
  const inside = found.filter(it => Math.log10(it) >= a - 1e-9 && Math.log10(it) <= b + 1e-9);
  return inside.length > 1 ? inside : steps(10 ** a, 10 ** b);
};
const nearest = (xs, x) => {  // index of the value of an ascending list that is nearest
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle; else high = middle;
  }
  return x - xs[low] <= xs[high] - x ? low : high;
};

const margin = {left: 52, right: 24, top: 10, bottom: 38};

class Chart {
  constructor(figure, data) {
    this.data = data;
    this.log = {x: data.x.log, y: data.y.log};
    this.hidden = new Set();
    this.cursor = null;
    this.box = make("div", {class: "chart"}, figure);
    this.area = make("div", {class: "area"}, this.box);
    this.tip = make("div", {class: "tip", role: "status", hidden: ""}, this.area);
    const bar = make("div", {class: "bar"}, this.box);
    for (const axis of data.lanes ? [] : ["x", "y"])
      if (data[axis].positive)
        button(`${axis} logarithmic`, this.log[axis], bar, () => {
          this.log[axis] = !this.log[axis];
          this.draw();
          return this.log[axis];
        });
    const legend = make("div", {class: "bar"}, this.box);
    data.series.forEach((series, i) => {
      if (series.faint && i && data.series[i - 1].faint) return;  // one button for all of these
      const text = series.faint ? "others" : series.label;
      const made = button(text, true, legend, () => {
        const those = series.faint ? data.series.filter(it => it.faint) : [series];
        const hide = !this.hidden.has(series);
        those.forEach(it => { if (hide) this.hidden.add(it); else this.hidden.delete(it); });
        this.draw();
        return !hide;
      });
      made.style.setProperty("--c", series.colour);
      const dash = series.dash === "2 2" ? "dotted" : series.dash ? "dashed" : "solid";
      made.style.setProperty("--dash", dash);
    });
    this.alt = figure.querySelector("img")?.alt ?? figure.dataset.alt;
    figure.classList.add("live");
    this.draw();
    const fit = () => { if (this.area.clientWidth !== this.width) this.draw(); };
    new ResizeObserver(() => requestAnimationFrame(fit)).observe(this.area);
  }

  get visible() { return this.data.series.filter(series => !this.hidden.has(series)); }

  range(axis) {
    if (this.data[axis].range) return this.data[axis].range;
    const values = this.data.lanes ? this.data.bars.flatMap(bar => [bar[1], bar[2]])
      : this.visible.flatMap(s => axis === "x" ? s.x : [...s.y, ...(s.low || [])]);
    if (axis === "y" && this.data.level !== undefined) values.push(this.data.level);
    const fit = values.filter(it => it !== null && (!this.log[axis] || it > 0));
    let low = Infinity, high = -Infinity;
    for (const it of fit) { low = Math.min(low, it); high = Math.max(high, it); }
    if (axis === "y" && this.data.y.top !== undefined) high = Math.min(high, this.data.y.top);
    return fit.length && low <= high ? [low, high] : [1, 10];
  }

  draw() {
    this.width = this.area.clientWidth;
    if (!this.width) return;
    const {lanes} = this.data, w = this.width - margin.left - margin.right;
    const h = lanes ? 22 * lanes.length : Math.min(0.55 * this.width, 300);
    this.area.querySelector("svg")?.remove();
    const svg = make("svg", {width: this.width, height: h + margin.top + margin.bottom,
      role: "img", tabindex: 0, "aria-label": `${this.alt} Arrow keys read the values.`});
    this.area.prepend(svg);
    const clip = `clip${Chart.count = (Chart.count || 0) + 1}`;
    make("rect", {x: 0, y: 0, width: w, height: h}, make("clipPath", {id: clip}, svg));
    const frame = make("g", {transform: `translate(${margin.left},${margin.top})`}, svg);
    const x = scale(...this.range("x"), this.log.x);
    const y = lanes ? {ticks: []} : scale(...this.range("y"), this.log.y);
    this.x = value => w * x.at(value);
    const top = value => h * (1 - y.at(value));
    for (const tick of x.ticks) {
      make("line", {class: "grid", x1: this.x(tick), x2: this.x(tick), y1: 0, y2: h}, frame);
      make("text", {x: this.x(tick), y: h + 15, "text-anchor": "middle"}, frame, shown(tick));
    }
    for (const tick of y.ticks) {
      make("line", {class: "grid", x1: 0, x2: w, y1: top(tick), y2: top(tick)}, frame);
      make("text", {x: -6, y: top(tick) + 4, "text-anchor": "end"}, frame, shown(tick));
    }
    make("text", {x: w / 2, y: h + 32, "text-anchor": "middle"}, frame, this.data.x.name);
    const name = {transform: `translate(-40,${h / 2}) rotate(-90)`, "text-anchor": "middle"};
    make("text", name, frame, this.data.y.name);
    const inside = make("g", {"clip-path": `url(#${clip})`}, frame);
    if (lanes) this.bars(inside, frame);
    else for (const series of this.visible) this.line(inside, series, top);
    if (this.data.level !== undefined)
      make("line", {class: "level", x1: 0, x2: w, y1: top(this.data.level),
        y2: top(this.data.level)}, inside);
    if (this.data.mark !== undefined)
      make("line", {class: "rule", x1: this.x(this.data.mark), x2: this.x(this.data.mark),
        y1: 0, y2: h}, inside);
    this.rule = make("line", {class: "rule", y1: 0, y2: h, visibility: "hidden"}, frame);
    svg.onpointermove = event => {
      const at = event.clientX - svg.getBoundingClientRect().left - margin.left;
      const row = Math.floor((event.clientY - svg.getBoundingClientRect().top - margin.top) / 22);
      this.point(this.places[nearest(this.places.map(this.x), at)], at, row);
    };
    svg.onpointerleave = svg.onblur = () => this.point(null);
    svg.onkeydown = event => {
      const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      if (!by || !this.places.length) return;
      event.preventDefault();
      const now = this.cursor === null ? (by > 0 ? -1 : this.places.length)
        : nearest(this.places, this.cursor);
      this.point(this.places[Math.min(Math.max(now + by, 0), this.places.length - 1)]);
    };
    const xs = lanes ? this.data.bars.map(bar => bar[2])
      : this.visible.filter(it => !it.faint).flatMap(it => it.x);
    this.places = [...new Set(xs)].filter(it => !this.log.x || it > 0).sort((a, b) => a - b);
  }

  line(parent, series, top) {
    const ok = i => series.y[i] !== null && (!this.log.y || series.y[i] > 0)
      && (!this.log.x || series.x[i] > 0);
    const path = (ys, order) => order.map((i, n) => `${n ? "L" : "M"}${this.x(series.x[i])
      .toFixed(1)},${top(ys[i]).toFixed(1)}`).join("");
    let run = [];
    const flush = () => {
      if (series.low && run.every(i => series.low[i] > 0 || !this.log.y)) {
        const high = run.map(i => series.high[i] ?? 1e30);  // up to the rim, where it is infinite
        const band = run.map((i, n) => `${n ? "L" : "M"}${this.x(series.x[i]).toFixed(1)},${
          Math.max(top(high[n]), -9).toFixed(1)}`).join("");
        const back = path(series.low, [...run].reverse()).replace("M", "L");
        make("path", {d: `${band}${back}Z`, class: "band"}, parent)
          .style.setProperty("--c", series.colour);
      }
      const drawn = make("path", {d: path(series.y, run), class: series.faint ? "faint" : "curve",
        "stroke-dasharray": series.dash || "none"}, parent);
      drawn.style.setProperty("--c", series.colour);
      if (series.faint) return;
      for (const i of run.length < 25 ? run : [])
        make("circle", {cx: this.x(series.x[i]), cy: top(series.y[i]), r: 2.5, class: "dot"}, parent)
          .style.setProperty("--c", series.colour);
    };
    series.x.forEach((_, i) => { if (ok(i)) run.push(i); else if (run.length) { flush(); run = []; } });
    if (run.length) flush();
  }

  bars(parent, frame) {
    this.data.lanes.forEach((lane, i) =>
      make("text", {x: -6, y: 22 * i + 15, "text-anchor": "end"}, frame, lane));
    for (const [lane, from, to, , share] of this.data.bars) {
      const width = Math.max(this.x(to) - this.x(from) - 1, 1);
      make("rect", {x: this.x(from), y: 22 * lane + 3, width, height: 16, class: "work"}, parent)
        .style.setProperty("--s", `${Math.round(25 + 75 * share)}%`);
    }
  }

  point(x, at = null, row = null) {
    this.cursor = x ?? null;
    this.tip.hidden = this.cursor === null;
    this.rule.setAttribute("visibility", this.tip.hidden ? "hidden" : "visible");
    if (this.tip.hidden) return;
    const place = this.x(x);
    this.rule.setAttribute("x1", place);
    this.rule.setAttribute("x2", place);
    this.tip.replaceChildren(make("b", {}, null, `${shown(x)} ${this.data.x.name}`));
    for (const series of this.visible.filter(it => !it.faint && it.x.length)) {
      const i = series.step ? series.x.findLastIndex(it => it <= x) : nearest(series.x, x);
      if (i < 0 || x > series.x.at(-1) || x < series.x[0]) continue;
      const {digit} = this.data.y, of = values => coarse(values[i], digit);
      const ends = series.low ? ` (${of(series.low)} – ${of(series.high)})` : "";
      make("span", {}, this.tip, `${series.label}: ${of(series.y)}${ends}`)
        .style.setProperty("--c", series.colour);
    }
    for (const bar of this.data.bars || []) {
      const here = at === null ? bar[2] === x : row === bar[0] && this.x(bar[1]) <= at && at < this.x(bar[2]);
      if (here) make("span", {}, this.tip, bar[3]);
    }
    const right = place > this.width / 2;
    this.tip.style.left = right ? "auto" : `${margin.left + place + 10}px`;
    this.tip.style.right = right ? `${this.width - margin.left - place + 10}px` : "auto";
  }
}
all("figure > script").forEach(it => new Chart(it.parentNode, JSON.parse(it.textContent)));

// The keys in which the configs of two runs differ.
all(".differences").forEach(it => {
  const {keys, runs} = JSON.parse(it.querySelector("script").textContent);
  const [one, other] = all("select", it), list = it.querySelector("dl");
  for (const select of [one, other])
    runs.forEach((run, i) => make("option", {value: i}, select, run[0]));
  other.value = Math.min(1, runs.length - 1);
  const show = () => {
    const [a, b] = [one, other].map(select => runs[select.value][1]);
    const told = value => value === null ? "not there" : String(value);
    list.replaceChildren();
    keys.forEach((key, i) => {
      if (a[i] === b[i]) return;
      make("dt", {}, list, key);
      make("dd", {}, list, `${told(a[i])}  →  ${told(b[i])}`);
    });
    if (!list.children.length) make("dt", {}, list, "Their configurations are the same.");
  };
  one.onchange = other.onchange = show;
  it.hidden = false;
  show();
});
