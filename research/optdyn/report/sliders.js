// What the page of prices says at its sliders' stops. `look` is all of the arithmetic.
"use strict";

// The rows that are seen: of each family the one whose period is nearest.
const seen = (data, at) => data.families.map(({name}) => {
  const wanted = Math.log(data.periods[at.period] ?? 1);
  const off = row => row.period ? Math.abs(Math.log(row.period) - wanted) : 0;
  return data.rows.filter(row => row.family === name).reduce((a, b) => off(b) < off(a) ? b : a);
});
const figure = (row, name, at) => row[name][at.stragglers][at.nodes]?.[at.bandwidth] ?? null;

// Synchronous training at the batch of the least time: [its place among such, its seconds].
const opponent = (data, at) => data.rows.filter(row => row.synchronous)
  .map((row, i) => [i, figure(row, "seconds", at), row.penalty ? row.penalty[0][0] : 1])
  .filter(([, seconds]) => seconds !== null)
  .reduce((a, b) => a && a[1] * a[2] <= b[1] * b[2] ? a : b, null);

// Of a row: seconds an update, examples a second, the share of time that computes, and, where its
// updates were measured, the time to the loss over that of synchronous training: value, low, high.
const read = (data, row, at) => {
  const seconds = figure(row, "seconds", at), computing = figure(row, "computing", at);
  const base = opponent(data, at);
  const examples = seconds === null ? null : row.batch[at.stragglers][at.nodes] / seconds;
  const time = seconds === null || !base || !row.penalty ? null
    : row.penalty[base[0]].map(updates => updates === null ? null : updates * seconds / base[1]);
  const label = row.period ? `${row.family}, period ${row.period}` : row.family;
  return {label, family: row.family, synchronous: row.synchronous, seconds, examples, computing, time};
};

// All rows at a state of the sliders, the best first, and the answer in words.
const look = (data, at) => {
  const rows = seen(data, at).map(row => read(data, row, at));
  const least = row => row.time ? row.time[0] ?? Infinity
    : row.examples === null ? Infinity : -row.examples;
  rows.sort((a, b) => least(a) === least(b) ? 0 : least(a) - least(b));
  return {rows, answer: answer(data, rows, at)};
};
const digits = value => value === null ? "∞" : Math.abs(value) >= 1000
  ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
const interval = ([value, low, high]) => `${digits(value)} [${digits(low)}, ${digits(high)}]`;
const words = (data, at) => ({
  bandwidth: `${digits(data.gigabits[at.bandwidth])} Gbit/s`,
  nodes: `${digits(data.nodes[at.nodes])} nodes`,
  stragglers: data.stragglers[at.stragglers],
  period: data.periods.length ? `${digits(data.periods[at.period])} updates` : "",
});
const answer = (data, rows, at) => {
  const {bandwidth, nodes} = words(data, at), [best] = rows, start = `With ${nodes} and ${bandwidth} `;
  if (best.seconds === null) return `${start}no method has a price.`;
  const share = `${digits(100 * best.computing)} % of the workers’ time is computing`;
  if (!best.time) return `${start}${best.label} puts most examples through, `
    + `${digits(best.examples)} a second; ${share}. How fast the loss falls is not in this.`;
  if (best.time[0] === null) return `${start}no method gets to the loss with most seeds.`;
  if (best.synchronous) return `${start}nothing takes less time than ${best.label}; ${share}.`;
  const unsure = best.time[1] <= 1 && (best.time[2] === null || best.time[2] >= 1)
    ? ", so no difference is seen" : "";
  return `${start}${best.label} takes the least time, ${interval(best.time)} times that of `
    + `synchronous training${unsure}; ${share}.`;
};

// Where numbers stand on a logarithmic axis: at powers of ten, or, if it is short, at more.
const decades = (low, high) => {
  const [a, b] = [low, high].map(Math.log10), found = [];
  for (let d = Math.floor(a); d <= b; d += Math.ceil((b - a) / 6))
    for (const n of b - a < 2.5 ? [1, 2, 5] : [1]) found.push(n * 10 ** d);
  const inside = found.filter(it => low <= it && it <= high);
  return inside.length > 1 ? inside : [low, high];
};

// Curves against the bandwidth, in a figure that may hold those of before. Each has a label, a
// colour, a dash and `ys`, null where it has none; upward is linear where `ticks` are given.
const plot = (figure, title, xs, curves, {range, ticks, level, mark}) => {
  const [w, h] = [440, 240], share = (value, [low, high], f) => (f(value) - f(low)) / (f(high) - f(low));
  const x = value => w * share(value, [xs[0], xs.at(-1)], Math.log);
  const y = value => h * (1 - share(value, range, ticks ? Number : Math.log));
  const svg = make("svg", {viewBox: `-55 -10 ${w + 75} ${h + 50}`, role: "img",
    "aria-label": figure.dataset.alt});
  const line = (x1, x2, y1, y2, kind) => make("line", {x1, x2, y1, y2, class: kind}, svg);
  for (const tick of decades(xs[0], xs.at(-1))) {
    line(x(tick), x(tick), 0, h, "grid");
    make("text", {x: x(tick), y: h + 15, "text-anchor": "middle"}, svg, digits(tick));
  }
  for (const tick of ticks ?? decades(...range)) {
    line(0, w, y(tick), y(tick), "grid");
    make("text", {x: -6, y: y(tick) + 4, "text-anchor": "end"}, svg, digits(tick));
  }
  make("text", {x: w / 2, y: h + 32, "text-anchor": "middle"}, svg, "Gbit/s between nodes");
  make("text", {transform: `translate(-42,${h / 2}) rotate(-90)`, "text-anchor": "middle"}, svg, title);
  line(x(mark), x(mark), 0, h, "mark");
  if (level) line(0, w, y(level), y(level), "mark");
  const caption = make("figcaption");
  for (const {label, colour, dash, ys} of curves) {
    const points = ys.map((value, i) => value === null ? null : `${x(xs[i])},${y(value)}`);
    const d = points.map((it, i) => it && (points[i - 1] ? `L${it}` : `M${it}`)).join("");
    const look = {color: colour, "stroke-dasharray": dash};
    make("path", {d}, make("g", look, svg));
    const said = make("span", {}, caption), key = make("svg", {viewBox: "0 0 32 10"}, said);
    make("path", {d: "M0,5H32"}, make("g", look, key));
    said.append(label);
  }
  figure.replaceChildren(svg, caption);
};

// The page itself.
const open = (data, id = name => document.getElementById(name)) => {
  const at = {...data.start};
  const kinds = {computing: "computing, %", seconds: "seconds an update", time: "time over synchronous"};
  const value = (read, name) => name === "computing" ? read[name] === null ? null : 100 * read[name]
    : name === "time" ? read.time && read.time[0] : read[name];
  const along = (row, name) => data.gigabits.map((_, bandwidth) =>
    value(read(data, row, {...at, bandwidth}), name));
  const ends = name => {  // of the figure, wherever the sliders are
    let low = Infinity, high = -Infinity;
    data.stragglers.forEach((_, stragglers) => data.nodes.forEach((_, nodes) =>
      data.gigabits.forEach((_, bandwidth) => data.rows.forEach(row => {
        const it = value(read(data, row, {stragglers, nodes, bandwidth, period: 0}), name);
        if (it > 0) { low = Math.min(low, it); high = Math.max(high, it); }
      }))));
    return low < high ? [low, high] : [low / 2, 2 * high];
  };
  const axes = {computing: {range: [0, 100], ticks: [0, 20, 40, 60, 80, 100]},
    seconds: {range: ends("seconds")}, time: {range: ends("time"), level: 1}};
  const fill = (body, rows) => body.replaceChildren(...rows.map(cells => {
    const row = make("tr");
    cells.forEach((text, i) => make(i ? "td" : "th", i ? {} : {scope: "row"}, row, text));
    return row;
  }));
  const update = () => {
    const said = words(data, at), {rows, answer: told} = look(data, at);
    for (const [name, text] of Object.entries(said)) {
      const input = id(`at-${name}`);
      if (!input) continue;
      input.setAttribute("aria-valuetext", text);
      id(`said-${name}`).textContent = text;
    }
    clearTimeout(open.late);  // a screen reader hears where a slider stops, not what it passes
    open.late = setTimeout(() => { id("answer").textContent = told; }, 150);
    const none = "no price", show = value => value === null ? none : digits(value);
    fill(id("now"), rows.map(row => [row.label, show(row.seconds), show(row.examples),
      row.computing === null ? none : digits(100 * row.computing),
      ...(data.rows.some(it => it.penalty) ? [row.time ? interval(row.time) : "not measured"] : [])]));
    const those = seen(data, at);
    fill(id("along"), those.map(row => [read(data, row, at).label,
      ...along(row, "computing").map(it => it === null ? none : digits(it))]));
    for (const [name, title] of Object.entries(kinds)) {
      const curves = data.families.map(({name: label, colour, dash}, i) =>
        ({label, colour, dash, ys: along(those[i], name)}));
      const axis = {...axes[name], mark: data.gigabits[at.bandwidth]};
      if (id(name)) plot(id(name), title, data.gigabits, curves, axis);
    }
  };
  for (const name of ["bandwidth", "nodes", "stragglers", "period"]) {
    const input = id(`at-${name}`);
    if (!input) continue;
    input.value = at[name];
    input.oninput = () => { at[name] = Number(input.value); update(); };
  }
  update();
  id("answer").textContent = look(data, at).answer;
};
