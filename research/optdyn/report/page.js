// What a page does beyond its HTML: sorted tables.
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
