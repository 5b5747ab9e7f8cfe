(() => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Tables sort without any library.
  for (const table of all("table")) {
    const heads = all("thead th", table);
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const descending = head.getAttribute("aria-sort") === "ascending"
          || (column > 0 && !head.hasAttribute("aria-sort"));
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        const body = table.tBodies[0];
        const numeric = [...body.rows].some((row) => isNumber(row.cells[column]));
        const rows = [...body.rows].sort((a, b) => {
          const x = key(a.cells[column], numeric), y = key(b.cells[column], numeric);
          if (x === null || y === null) return (x === null) - (y === null); // nothing comes last
          return (x < y ? -1 : x > y ? 1 : 0) * (descending ? -1 : 1);
        });
        body.append(...rows);
      });
    });
  }

  function isNumber(cell) {
    return cell.dataset.value !== undefined && !Number.isNaN(Number(cell.dataset.value));
  }

  function key(cell, numeric) {
    if (numeric) return isNumber(cell) ? Number(cell.dataset.value) : null;
    const text = cell.textContent.trim();
    return text === "–" ? null : text;
  }
})();
