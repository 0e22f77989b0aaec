// What a report does beyond its HTML: themes, sorted tables, differences of two runs.
// Without it the page has its tables in the order in which they were written.
"use strict";
const all = (query, within = document) => [...within.querySelectorAll(query)];
const make = (tag, attributes = {}, parent = null, text = null) => {
  const svg = ["svg", "path", "line", "text", "g"].includes(tag);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null) made.textContent = text;
  if (parent) parent.append(made);
  return made;
};

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
